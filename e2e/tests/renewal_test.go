package tests

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// What manifests/components/self-provisioned-certificates has: who makes the certificates of the plugin and of the operator.
const (
	certificates = "scale-to-zero-certificates"
	serverSecret = "scaletozero-server-tls"
	clientSecret = "scaletozero-client-tls"

	authorityCertificate, authorityKey = "ca.crt", "ca.key"
)

// grpcPort is the plugin's for the operator.
const grpcPort = 9090

// toRefresh bounds how long the kubelet takes to give a pod the new files of a Secret: it looks once a minute, at what it may have
// read a minute before.
const toRefresh = 3 * time.Minute

// The certificates of both sides are renewed, which the operator learns at once and each of the plugin's pods when the kubelet
// refreshes its files: meanwhile and afterwards the operator gets every answer that it wants.
func TestRenewedCertificatesDropNoCall(t *testing.T) {
	t.Parallel()
	s := begin(t)
	if len(s.secret(serverSecret).Data[authorityKey]) == 0 {
		t.Skip("the certificates are made by somebody else here")
	}
	c := s.running(kube.NewCluster(s.namespace, "asked", 1, never))
	begun := time.Now()
	stop := s.looking(c, time.Second/2)
	defer stop()
	due := map[string]string{}
	for _, name := range []string{serverSecret, clientSecret} {
		due[name] = s.grantDue(name)
	}
	s.restart(certificates)
	for name, certificate := range due {
		_, err := kube.AwaitSecret(s.ctx, s.secret(name), "renewed", time.Minute, func(secret *corev1.Secret) bool {
			return string(secret.Data[corev1.TLSCertKey]) != certificate
		})
		s.must(err)
	}
	s.served(s.secret(serverSecret).Data[corev1.TLSCertKey])
	t.Logf("every replica of the plugin serves the new certificate %.0fs after the first change", time.Since(begun).Seconds())
	made := kube.NewCluster(s.namespace, "made", 1, never)
	s.must(kube.Create(s.ctx, made))
	s.must(kube.AwaitHealthy(s.ctx, made, toHealthy))
	if sidecar(s.instances(made)[0]) == nil {
		t.Error("the plugin was not asked about a new pod")
	}
	stop()
	for _, line := range s.complaints(begun) {
		t.Errorf("the operator got no answer: %s", line)
	}
}

// grantDue gives a Secret a certificate for the same names that has a day left, by the Secret's own authority as the project's
// program makes them, and returns it.
func (s *story) grantDue(name string) string {
	s.Helper()
	secret := s.secret(name)
	last, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	s.must(err)
	authority, err := tls.X509KeyPair(secret.Data[authorityCertificate], secret.Data[authorityKey])
	s.must(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s.must(err)
	template := *last.Leaf
	template.SerialNumber, template.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(24*time.Hour)
	signed, err := x509.CreateCertificate(rand.Reader, &template, authority.Leaf, key.Public(), authority.PrivateKey)
	s.must(err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	s.must(err)
	certificate := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}), secret.Data[authorityCertificate]...)
	changed := secret.DeepCopy()
	changed.Data[corev1.TLSCertKey] = certificate
	changed.Data[corev1.TLSPrivateKeyKey] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(secret)))
	return string(certificate)
}

// served waits until every replica of the plugin proves itself with the first certificate of those.
func (s *story) served(certificates []byte) {
	s.Helper()
	want, _ := pem.Decode(certificates)
	ctx, cancel := context.WithTimeoutCause(s.ctx, toRefresh, fmt.Errorf("the plugin's pods have no new certificate after %s", toRefresh))
	defer cancel()
	for _, replica := range s.replicas() {
		for {
			got, err := kube.Certificate(ctx, replica.Namespace, replica.Name, grpcPort)
			s.must(err)
			if bytes.Equal(got.Raw, want.Bytes) {
				break
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				s.Fatal(context.Cause(ctx))
			}
		}
	}
}

// complaints are what the operator has logged since then of errors with plugins at the test's clusters. With new certificates it
// drops its connections, also one that it is making, and makes others (1.30: internal/cnpi/plugin/repository, setPluginProtocol):
// what it cancelled itself, nobody has refused.
func (s *story) complaints(since time.Time) []string {
	s.Helper()
	var pods corev1.PodList
	s.must(kube.List(s.ctx, &pods, client.InNamespace(scenario.OperatorNamespace), client.MatchingLabels(s.deployment(operatorDeployment).Spec.Selector.MatchLabels)))
	var found []string
	heard := false
	for _, pod := range pods.Items {
		log, err := kube.LogsSince(s.ctx, pod.Namespace, pod.Name, "manager", since)
		s.must(err)
		for line := range strings.Lines(log) {
			var entry struct{ Level, Namespace, Error string }
			if json.Unmarshal([]byte(line), &entry) != nil || entry.Namespace != s.namespace {
				continue
			}
			heard = true
			if entry.Level == "error" && strings.Contains(line, "plugin") && !strings.Contains(entry.Error, "context canceled") {
				found = append(found, line)
			}
		}
	}
	if !heard {
		s.Error("the operator's log says nothing of these clusters")
	}
	return found
}

func (s *story) secret(name string) *corev1.Secret {
	s.Helper()
	secret := &corev1.Secret{}
	s.must(kube.Get(s.ctx, types.NamespacedName{Namespace: scenario.OperatorNamespace, Name: name}, secret))
	return secret
}

// restart replaces the pods of a Deployment.
func (s *story) restart(name string) {
	s.Helper()
	deployment := s.deployment(name)
	s.must(kube.DeleteAllOf(s.ctx, &corev1.Pod{}, client.InNamespace(deployment.Namespace), client.MatchingLabels(deployment.Spec.Selector.MatchLabels)))
}
