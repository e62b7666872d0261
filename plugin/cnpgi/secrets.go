package cnpgi

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// certificateLife is the validity of a certificate, which is renewed when less than renewal is left.
	certificateLife, renewal = 90 * 24 * time.Hour, 30 * 24 * time.Hour
	// authorityLife is the validity of a CA. A CA that would not outlive a new certificate is replaced, and calls are
	// then refused until the plugin's pods have the new files.
	authorityLife = 10 * 365 * 24 * time.Hour
	// clockSkew is the tolerated clock difference between two machines.
	clockSkew = 5 * time.Minute
)

// Keys of the Secrets for the CA. Only this package reads its private key.
const authorityCertificate, authorityKey = "ca.crt", "ca.key"

// CertificateNames are the names of the Secrets and of the Service that they certify.
type CertificateNames struct{ Namespace, Service, ServerSecret, ClientSecret string }

// EnsureCertificates creates or renews what is missing, invalid or due, and leaves the rest alone. It returns the names
// of the Secrets it wrote. It may run concurrently in several processes: a later one finds the Secret created or
// changed and leaves it alone.
func EnsureCertificates(
	ctx context.Context, client kubernetes.Interface, names CertificateNames, now time.Time,
) ([]string, error) {
	server := []string{names.Service, names.Service + "." + names.Namespace, names.Service + "." + names.Namespace + ".svc"}
	var written []string
	for _, secret := range []struct {
		name string
		dns  []string
	}{{names.ServerSecret, server}, {names.ClientSecret, []string{names.ClientSecret}}} {
		wrote, err := ensureSecret(ctx, client, names.Namespace, secret.name, secret.dns, now)
		if err != nil {
			return written, err
		}
		if wrote {
			written = append(written, secret.name)
		}
	}
	return written, nil
}

func ensureSecret(
	ctx context.Context, client kubernetes.Interface, namespace, name string, dns []string, now time.Time,
) (bool, error) {
	secrets := client.CoreV1().Secrets(namespace)
	have, err := secrets.Get(ctx, name, metav1.GetOptions{})
	exists := !apierrors.IsNotFound(err)
	if err != nil && exists {
		return false, fmt.Errorf("read Secret %s: %w", name, err)
	}
	if exists && isCurrent(have.Data, dns, now) {
		return false, nil
	}
	var last map[string][]byte
	if exists {
		last = have.Data
	}
	data, err := issue(last, dns, now)
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

// isCurrent reports whether the Secret holds a certificate for the names with its own key that is not yet due for
// renewal.
func isCurrent(data map[string][]byte, dns []string, now time.Time) bool {
	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil || now.Before(pair.Leaf.NotBefore) || now.Add(renewal).After(pair.Leaf.NotAfter) {
		return false
	}
	for _, name := range dns {
		if pair.Leaf.VerifyHostname(name) != nil {
			return false
		}
	}
	return true
}

// issue makes a key and a certificate, signed by the CA of the previous content if that is usable.
func issue(last map[string][]byte, dns []string, now time.Time) (map[string][]byte, error) {
	authority, err := tls.X509KeyPair(last[authorityCertificate], last[authorityKey])
	if err != nil || now.Before(authority.Leaf.NotBefore) || now.Add(certificateLife).After(authority.Leaf.NotAfter) {
		if authority, err = newAuthority(dns[0], now); err != nil {
			return nil, fmt.Errorf("make an authority: %w", err)
		}
	}
	leaf, err := sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: dns[0]}, DNSNames: dns, NotAfter: now.Add(certificateLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, authority, now)
	if err != nil {
		return nil, err
	}
	certificate, key, err := encodePEM(leaf)
	if err != nil {
		return nil, err
	}
	above, aboveKey, err := encodePEM(authority)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		corev1.TLSCertKey: append(certificate, above...), corev1.TLSPrivateKeyKey: key,
		authorityCertificate: above, authorityKey: aboveKey,
	}, nil
}

// isAuthorityOf reports whether a certificate is the CA that this package has made for the Secret of the other, and for
// no other.
func isAuthorityOf(authority, leaf *x509.Certificate) bool {
	return authority.Subject.CommonName == authorityName(leaf.Subject.CommonName) &&
		authority.CheckSignatureFrom(authority) == nil
}

func authorityName(of string) string { return of + " authority" }

// newAuthority makes a CA that may sign certificates but no further CAs.
func newAuthority(name string, now time.Time) (tls.Certificate, error) {
	return sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: authorityName(name)}, NotAfter: now.Add(authorityLife),
		IsCA: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}, tls.Certificate{}, now)
}

// sign makes a key and a certificate from the template, signed by the CA or, without one, by its own key.
func sign(template *x509.Certificate, authority tls.Certificate, now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("generate a key: %w", err)
	}
	template.NotBefore, template.BasicConstraintsValid = now.Add(-clockSkew), true
	parent, signer := authority.Leaf, authority.PrivateKey
	if parent == nil {
		parent, signer = template, key
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("sign the certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(signed)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("read the signed certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: key, Leaf: leaf}, nil
}

// encodePEM returns the certificate and its key as PEM.
func encodePEM(pair tls.Certificate) (certificate, key []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the key: %w", err)
	}
	certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Leaf.Raw})
	return certificate, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
