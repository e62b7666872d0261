package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/internal/postgrestest"
)

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// certify makes a key and a certificate. If the authority is nil, the certificate is an authority's own.
func certify(t *testing.T, by *authority, name string) (*authority, *pem.Block) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true, IsCA: by == nil,
	}
	if by == nil {
		by = &authority{certificate: template, key: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.certificate, key.Public(), by.key)
	must(t, err)
	parsed, err := x509.ParseCertificate(der)
	must(t, err)
	return &authority{certificate: parsed, key: key}, &pem.Block{Type: "CERTIFICATE", Bytes: der}
}

// pki puts the files for TLS where the server and psql find them: ca.crt, server.crt and server.key for the name localhost, and
// client.crt and client.key for the role certified.
func pki(t *testing.T, server *postgrestest.Server) {
	t.Helper()
	write := func(name string, block *pem.Block) {
		path := filepath.Join(server.Directory, "data", name)
		must(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
		owner, err := os.Stat(filepath.Dir(path))
		must(t, err)
		is := owner.Sys().(*syscall.Stat_t)
		must(t, os.Chown(path, int(is.Uid), int(is.Gid)))
	}
	ca, certificate := certify(t, nil, "ca")
	write("ca.crt", certificate)
	for file, name := range map[string]string{"server": "localhost", "client": "certified"} {
		holder, certificate := certify(t, ca, name)
		write(file+".crt", certificate)
		secret, err := x509.MarshalPKCS8PrivateKey(holder.key)
		must(t, err)
		write(file+".key", &pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	}
}
