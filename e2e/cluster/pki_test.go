package cluster

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"slices"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/keyutil"
)

func TestCertificates(t *testing.T) {
	t.Parallel()
	l := Layout{Run: t.TempDir()}
	if err := l.writePKI(); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		rule, name, authority, subject string
		groups                         []string
		usage                          x509.ExtKeyUsage
	}{
		{"the API server serves with one of the cluster's", "apiserver", "ca", "kube-apiserver", nil, x509.ExtKeyUsageServerAuth},
		{"the kubelet believes the API server", "apiserver-kubelet", "ca", "apiserver-kubelet-client", []string{"system:masters"}, x509.ExtKeyUsageClientAuth},
		{"the front proxy has an authority of its own", "front-client", "front-ca", "front-proxy-client", nil, x509.ExtKeyUsageClientAuth},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			pair := must(tls.LoadX509KeyPair(l.run("pki", row.name+".crt"), l.run("pki", row.name+".key")))(t)
			verify(t, l, pair.Leaf, row.authority, row.usage)
			if pair.Leaf.Subject.CommonName != row.subject || !slices.Equal(pair.Leaf.Subject.Organization, row.groups) {
				t.Errorf("the subject is %s", pair.Leaf.Subject)
			}
		})
	}
	for _, row := range []struct{ rule, name, user, group string }{
		{"the node is one to the Node authorizer", "kubelet-" + nodeName, "system:node:" + nodeName, "system:nodes"},
		{"the administrator may do everything", "admin", "admin", "system:masters"},
		{"the scheduler has its role by its name", "scheduler", "system:kube-scheduler", ""},
		{"the controllers have theirs", "controller-manager", "system:kube-controller-manager", ""},
		{"kube-proxy has its own", "proxy", "system:kube-proxy", ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			config := must(clientcmd.BuildConfigFromFlags("", l.run("pki", row.name+".conf")))(t)
			pair := must(tls.X509KeyPair(config.CertData, config.KeyData))(t)
			verify(t, l, pair.Leaf, "ca", x509.ExtKeyUsageClientAuth)
			if pair.Leaf.Subject.CommonName != row.user {
				t.Errorf("the user is %q, want %q", pair.Leaf.Subject.CommonName, row.user)
			}
			if row.group != "" && !slices.Contains(pair.Leaf.Subject.Organization, row.group) {
				t.Errorf("the groups are %v, want %s among them", pair.Leaf.Subject.Organization, row.group)
			}
		})
	}
}

func TestTheAPIServerIsKnownByEveryNameThatClientsUse(t *testing.T) {
	t.Parallel()
	l := Layout{Run: t.TempDir()}
	if err := l.writePKI(); err != nil {
		t.Fatal(err)
	}
	server := must(tls.LoadX509KeyPair(l.run("pki", "apiserver.crt"), l.run("pki", "apiserver.key")))(t).Leaf
	for _, name := range []string{nodeAddress, apiService, "127.0.0.1", "localhost", "kubernetes.default.svc"} {
		if err := server.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
}

func TestTheKeyThatSignsTokensChecksThem(t *testing.T) {
	t.Parallel()
	l := Layout{Run: t.TempDir()}
	if err := l.writePKI(); err != nil {
		t.Fatal(err)
	}
	signs := must(keyutil.PrivateKeyFromFile(l.run("pki", "sa.key")))(t)
	checks := must(keyutil.PublicKeysFromFile(l.run("pki", "sa.key")))(t) // as the API server reads it
	if key, is := signs.(*ecdsa.PrivateKey); !is || len(checks) != 1 || !key.PublicKey.Equal(checks[0]) {
		t.Errorf("%T is signed with, %d keys check", signs, len(checks))
	}
}

func TestKeysAreForTheirOwnerOnly(t *testing.T) {
	t.Parallel()
	l := Layout{Run: t.TempDir()}
	if err := l.writePKI(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pki/sa.key", "pki/apiserver.key", "pki/admin.conf", "kubeconfig"} {
		if info := must(os.Stat(l.run(name)))(t); info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %s", name, info.Mode())
		}
	}
}

func verify(t *testing.T, l Layout, certificate *x509.Certificate, authority string, usage x509.ExtKeyUsage) {
	t.Helper()
	roots := x509.NewCertPool()
	content := must(os.ReadFile(l.run("pki", authority+".crt")))(t)
	if block, rest := pem.Decode(content); block == nil || len(rest) > 0 || !roots.AppendCertsFromPEM(content) {
		t.Fatalf("%s.crt is not one certificate", authority)
	}
	if _, err := certificate.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
		t.Error(err)
	}
}
