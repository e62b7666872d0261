package main

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/cnpg-i/scale-to-zero/plugin/cnpgi"
	"github.com/cnpg-i/scale-to-zero/plugin/config"
)

// endpoint makes the certificate of the wake endpoint, and service accounts of callers. The function that it returns
// sends a request for the cluster with the token of an account; "" stands for an invalid token.
func (f *people) endpoint(restConfig *rest.Config, c *config.Config) (ask func(method, as string, status int, says string)) {
	f.t.Helper()
	clientset, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		f.t.Fatal(err)
	}
	names := cnpgi.CertificateNames{Namespace: "cnpg-system", Service: "scale-to-zero", ServerSecret: "server", ClientSecret: "client"}
	if _, err := cnpgi.EnsureCertificates(f.t.Context(), clientset, names, time.Now()); err != nil {
		f.t.Fatal(err)
	}
	secret, err := clientset.CoreV1().Secrets(names.Namespace).Get(f.t.Context(), names.ServerSecret, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	directory := f.t.TempDir()
	c.ServerCert, c.ServerKey = filepath.Join(directory, corev1.TLSCertKey), filepath.Join(directory, corev1.TLSPrivateKeyKey)
	for _, path := range []string{c.ServerCert, c.ServerKey} {
		if err := os.WriteFile(path, secret.Data[filepath.Base(path)], 0o600); err != nil {
			f.t.Fatal(err)
		}
	}
	tokens := map[string]string{"": "invalid"}
	for account, verbs := range map[string][]string{"waker": {"patch"}, "reader": {"get"}, "stranger": {"list"}} {
		named := metav1.ObjectMeta{Namespace: "shop", Name: account}
		caller := &corev1.ServiceAccount{ObjectMeta: named}
		f.create(caller)
		f.create(&rbacv1.Role{ObjectMeta: named, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{c.Group}, Resources: []string{"clusters"}, ResourceNames: []string{"orders"}, Verbs: verbs},
		}})
		f.create(&rbacv1.RoleBinding{
			ObjectMeta: named, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: account},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "shop", Name: account}},
		})
		token := &authenticationv1.TokenRequest{}
		if err := f.admin.SubResource("token").Create(f.t.Context(), caller, token); err != nil {
			f.t.Fatal(err)
		}
		tokens[account] = token.Status.Token
	}
	authority := x509.NewCertPool()
	authority.AppendCertsFromPEM(secret.Data["ca.crt"])
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority, ServerName: "scale-to-zero.cnpg-system.svc"}}
	f.t.Cleanup(transport.CloseIdleConnections)
	return func(method, as string, status int, says string) {
		f.t.Helper()
		page := "https://" + c.WakeEndpointAddress + "/v1/namespaces/shop/clusters/orders/wake"
		request, err := http.NewRequestWithContext(f.t.Context(), method, page, nil)
		if err != nil {
			f.t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+tokens[as])
		response, err := (&http.Client{Transport: transport}).Do(request)
		if err != nil {
			f.t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		if body, err := io.ReadAll(response.Body); err != nil || response.StatusCode != status || !strings.Contains(string(body), says) {
			f.t.Errorf("%s as %q: %d, %s, %v, want %d, %s", method, as, response.StatusCode, body, err, status, says)
		}
	}
}
