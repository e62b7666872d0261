// Package certificates makes and renews the two Secrets that the operator and the plugin prove themselves with, for
// installations without cert-manager. Each certificate is its own authority, as CloudNativePG expects of plugins.
package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// life is how long a certificate is valid, and renewal how much of it is left when it is renewed.
	life, renewal = 90 * 24 * time.Hour, 30 * 24 * time.Hour
	// skew is how far the clocks of two machines may be apart.
	skew = 5 * time.Minute
)

// Names say where the Secrets are and what they certify.
type Names struct{ Namespace, Service, ServerSecret, ClientSecret string }

// Ensure makes what is missing, invalid or due, and leaves the rest alone. It returns the names of the Secrets it wrote.
// Several processes may do so at once: the one that comes later finds the Secret made or changed and leaves it.
func Ensure(ctx context.Context, client kubernetes.Interface, names Names, now time.Time) ([]string, error) {
	server := []string{names.Service, names.Service + "." + names.Namespace, names.Service + "." + names.Namespace + ".svc"}
	var written []string
	for _, secret := range []struct {
		name string
		dns  []string
	}{{names.ServerSecret, server}, {names.ClientSecret, []string{names.ClientSecret}}} {
		wrote, err := ensure(ctx, client, names.Namespace, secret.name, secret.dns, now)
		if err != nil {
			return written, err
		}
		if wrote {
			written = append(written, secret.name)
		}
	}
	return written, nil
}

func ensure(ctx context.Context, client kubernetes.Interface, namespace, name string, dns []string, now time.Time) (bool, error) {
	secrets := client.CoreV1().Secrets(namespace)
	have, err := secrets.Get(ctx, name, metav1.GetOptions{})
	exists := !apierrors.IsNotFound(err)
	if err != nil && exists {
		return false, fmt.Errorf("read Secret %s: %w", name, err)
	}
	if exists && good(have.Data, dns, now) {
		return false, nil
	}
	data, err := selfSigned(dns, now)
	if err != nil {
		return false, fmt.Errorf("make the certificate of Secret %s: %w", name, err)
	}
	if exists {
		have.Data = data
		_, err = secrets.Update(ctx, have, metav1.UpdateOptions{})
	} else {
		_, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Type: corev1.SecretTypeTLS, Data: data,
		}, metav1.CreateOptions{})
	}
	switch {
	case apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("write Secret %s: %w", name, err)
	default:
		return true, nil
	}
}

// good tells whether the Secret holds a certificate for the names that is not yet to be renewed, and its key.
func good(data map[string][]byte, dns []string, now time.Time) bool {
	block, _ := pem.Decode(data[corev1.TLSCertKey])
	if block == nil || len(data[corev1.TLSPrivateKeyKey]) == 0 {
		return false
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil || now.Before(certificate.NotBefore) || now.Add(renewal).After(certificate.NotAfter) {
		return false
	}
	for _, name := range dns {
		if certificate.VerifyHostname(name) != nil {
			return false
		}
	}
	return true
}

// selfSigned makes a key and a certificate signed with it.
func selfSigned(dns []string, now time.Time) (map[string][]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate a key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: dns[0]}, DNSNames: dns,
		NotBefore: now.Add(-skew), NotAfter: now.Add(life), BasicConstraintsValid: true, IsCA: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate: %w", err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key: %w", err)
	}
	return map[string][]byte{
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}),
	}, nil
}
