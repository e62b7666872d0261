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

// Names in manifests/components/self-provisioned-certificates, which creates the certificates of the plugin and of the
// operator.
const (
	certificates = "scale-to-zero-certificates"
	serverSecret = "scaletozero-server-tls"
	clientSecret = "scaletozero-client-tls"

	authorityCertificate, authorityKey = "ca.crt", "ca.key"
)

// grpcPort is the plugin's port for the operator.
const grpcPort = 9090

// toRefresh bounds how long the kubelet takes to update a pod's files of a Secret: it syncs once a minute, from a cache that
// may be a minute old.
const toRefresh = 5 * time.Minute

// Both sides' certificates are renewed. The operator sees that at once, each of the plugin's pods only when the kubelet updates
// its files; meanwhile and afterwards every call of the operator is answered.
func TestRenewedCertificatesDropNoCall(t *testing.T) {
	whole(t)
	s := disturbing(t)
	if len(s.secret(serverSecret).Data[authorityKey]) == 0 {
		t.Skip("the certificates are made by somebody else here")
	}
	c := s.running(kube.NewCluster(s.namespace, "asked", 1, never))
	d := s.turn(c)
	begun := time.Now()
	stop := s.looking(c, time.Second/2)
	defer stop()
	for range repeats(t, "RENEWALS", 1) {
		d.renew()
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
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	own, refused := s.complaints(begun)
	t.Logf("the operator failed %d times by itself, before a call reached the plugin", len(own))
	for _, line := range own {
		t.Logf("the operator's own: %s", line)
	}
	for _, line := range refused {
		t.Errorf("the operator got no answer: %s", line)
	}
}

// renew renews both certificates by first giving each Secret one that is due: the operator registers the plugin four times.
func (s *disturber) renew() {
	s.Helper()
	due := map[string]string{}
	for _, name := range []string{serverSecret, clientSecret} {
		due[name] = s.grantDue(name)
	}
	s.restart(certificates)
	for name, certificate := range due {
		_, err := scenario.Await(s.ctx, kube, s.secret(name), "renewed", toHealthy, func(secret *corev1.Secret) bool {
			return string(secret.Data[corev1.TLSCertKey]) != certificate
		})
		s.must(err)
	}
}

// grantDue gives a Secret a certificate for the same names with a day left, signed by the Secret's own CA as the project's
// program does, and returns it.
func (s *disturber) grantDue(name string) string {
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

// served waits until every replica of the plugin presents the first of those certificates.
func (s *story) served(certificates []byte) {
	s.Helper()
	want, _ := pem.Decode(certificates)
	ctx, cancel := context.WithTimeoutCause(s.ctx, toRefresh, fmt.Errorf("the plugin's pods have no new certificate after %s", toRefresh))
	defer cancel()
	for _, replica := range s.replicas() {
		for {
			got, err := certificate(ctx, replica.Namespace, replica.Name, grpcPort)
			if err == nil && bytes.Equal(got.Raw, want.Bytes) {
				break
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				s.Fatal(context.Cause(ctx), err)
			}
		}
	}
}

// complaints returns the operator's logged errors with plugins for the test's clusters since then: the operator's own, and
// those of calls that the plugin did not answer.
func (s *story) complaints(since time.Time) (own, refused []string) {
	s.Helper()
	var pods corev1.PodList
	s.must(kube.List(s.ctx, &pods, client.InNamespace(scenario.OperatorNamespace), client.MatchingLabels(s.deployment(operatorDeployment).Spec.Selector.MatchLabels)))
	logged := false
	for _, pod := range pods.Items {
		log, err := kube.LogsSince(s.ctx, pod.Namespace, pod.Name, "manager", since)
		s.must(err)
		for line := range strings.Lines(log) {
			var entry struct{ Level, Logger, Namespace, TS, Error string }
			if json.Unmarshal([]byte(line), &entry) != nil || entry.Namespace != s.namespace {
				continue
			}
			logged = true
			switch {
			case entry.Level != "error" || !strings.Contains(line, "plugin"):
			case operatorsOwn(entry.Logger, entry.Error):
				own = append(own, entry.TS+" "+entry.Error)
			default:
				refused = append(refused, line)
			}
		}
	}
	if !logged {
		s.Error("the operator's log says nothing of these clusters")
	}
	return own, refused
}

// operatorsOwn reports whether an error of the operator occurred before a call reached the plugin. To register a plugin again,
// the operator closes its connection pool, waits until all connections are returned, and only then installs a new pool (1.30.0:
// internal/cnpi/plugin/repository, setPluginProtocol). A reconciliation that starts meanwhile finds the closed pool, retries
// five times within 1.6 s, and fails if another reconciliation, of any cluster, holds a connection for longer; it is retried at
// once. Observed: 1 to 3 s while clusters were being created, 20 s next to one whose instance manager did not answer. A
// connection being opened for the closed pool is cancelled, at whatever stage, and only by that: the context of the pool's constructor,
// which logs as setPluginProtocol, ends when the pool is closed (puddle 2.2.2: initResourceValue). Errors of calls on an established
// connection match neither.
func operatorsOwn(logger, message string) bool {
	cause, getting := strings.CutPrefix(message, "while getting plugin connection: ")
	canceled := strings.HasSuffix(message, "context canceled")
	return getting && (cause == "closed pool" || strings.Contains(cause, "context canceled")) || logger == "setPluginProtocol" && canceled
}

func (s *story) secret(name string) *corev1.Secret {
	s.Helper()
	secret := &corev1.Secret{}
	s.must(kube.Get(s.ctx, types.NamespacedName{Namespace: scenario.OperatorNamespace, Name: name}, secret))
	return secret
}

// restart replaces the pods of a Deployment.
func (s *disturber) restart(name string) {
	s.Helper()
	deployment := s.deployment(name)
	s.must(kube.DeleteAllOf(s.ctx, &corev1.Pod{}, client.InNamespace(deployment.Namespace), client.MatchingLabels(deployment.Spec.Selector.MatchLabels)))
}
