package cnpgi

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"slices"
	"testing"
	"time"
)

// issuer signs certificates as an authority that many ask.
type issuer struct {
	t           *testing.T
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// issues makes a certificate, and its own if there is no issuer yet.
func (i *issuer) issues(name string) *x509.Certificate {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true, IsCA: i.certificate == nil,
	}
	parent, signer := i.certificate, i.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		i.t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		i.t.Fatal(err)
	}
	if i.certificate == nil {
		i.certificate, i.key = certificate, key
	}
	return certificate
}

// A file with the operator's certificate and its issuer's admits only the operator, not the issuer's other clients.
func TestTrusted_isTheOperatorAndNotWhomItsIssuerKnows(t *testing.T) {
	t.Parallel()
	i := &issuer{t: t}
	authority, operator, stranger := i.issues("an issuer"), i.issues("scale-to-zero-client"), i.issues("scale-to-zero-client")
	var file []byte
	for _, certificate := range []*x509.Certificate{operator, authority} {
		file = append(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})...)
	}
	pool, err := trusted(file)
	if err != nil {
		t.Fatal(err)
	}
	for who, row := range map[string]struct {
		certificate *x509.Certificate
		admitted    bool
	}{"the operator": {operator, true}, "another certificate of its issuer": {stranger, false}} {
		intermediates := x509.NewCertPool()
		intermediates.AddCert(authority)
		_, err := row.certificate.Verify(x509.VerifyOptions{Roots: pool, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if (err == nil) != row.admitted {
			t.Errorf("%s: %v", who, err)
		}
	}
	for _, text := range [][]byte{nil, []byte("no certificate")} {
		if _, err := trusted(text); !errors.Is(err, errNoCertificate) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := trusted(slices.Concat([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), file)); err == nil {
		t.Error("a certificate that cannot be parsed is passed over")
	}
}
