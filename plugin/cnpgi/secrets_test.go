package cnpgi

import (
	"bytes"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestEnsure(t *testing.T) {
	t.Parallel()
	names := CertificateNames{Namespace: "cnpg-system", Service: "scale-to-zero", ServerSecret: "server", ClientSecret: "client"}
	client := fake.NewClientset()
	start := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	read := func(name, key string) []byte {
		secret, err := client.CoreV1().Secrets("cnpg-system").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return secret.Data[key]
	}
	step := func(rule string, now time.Time, want int) {
		t.Helper()
		written, err := EnsureCertificates(t.Context(), client, names, now)
		if err != nil || len(written) != want {
			t.Errorf("%s: wrote %v (%v), want %d", rule, written, err, want)
		}
	}
	step("both are made", start, 2)
	first, key, authority := read("server", corev1.TLSCertKey), read("server", corev1.TLSPrivateKeyKey), read("server", authorityCertificate)
	step("good ones are left alone", start.Add(24*time.Hour), 0)
	step("they are renewed before a third of their life is left", start.Add(certificateLife-renewal+time.Hour), 2)
	if bytes.Equal(first, read("server", corev1.TLSCertKey)) || bytes.Equal(key, read("server", corev1.TLSPrivateKeyKey)) {
		t.Error("the certificate or its key is the same after the renewal")
	}
	if !bytes.Equal(authority, read("server", authorityCertificate)) {
		t.Error("the authority is another after the renewal")
	}
	secret, err := client.CoreV1().Secrets("cnpg-system").Get(t.Context(), "client", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret.Data[corev1.TLSCertKey] = []byte("spoilt")
	if _, err := client.CoreV1().Secrets("cnpg-system").Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	step("a spoilt one is made anew", start.Add(certificateLife-renewal+2*time.Hour), 1)
	if secret, err = client.CoreV1().Secrets("cnpg-system").Get(t.Context(), "client", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	secret.Data[corev1.TLSPrivateKeyKey] = read("server", corev1.TLSPrivateKeyKey)
	if _, err := client.CoreV1().Secrets("cnpg-system").Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	step("one with the key of another is made anew", start.Add(certificateLife-renewal+2*time.Hour), 1)
	if err := client.CoreV1().Secrets("cnpg-system").Delete(t.Context(), "client", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	step("one that was deleted is made anew", start.Add(certificateLife-renewal+2*time.Hour), 1)
	names.Service = "another"
	step("another name needs another certificate", start.Add(certificateLife-renewal+2*time.Hour), 1)
	authority = read("server", authorityCertificate)
	step("an authority that would end before its certificate is made anew", start.Add(authorityLife-certificateLife/2), 2)
	if bytes.Equal(authority, read("server", authorityCertificate)) {
		t.Error("the authority is the same although it ends soon")
	}
}
