package cnpgi

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/cnpg-i/scale-to-zero/sidecar/httpserver"
)

// CertificateFiles are the paths of the certificates, which may change.
type CertificateFiles struct{ ServerCert, ServerKey, ClientCert string }

// certificates holds the last consistent set of the files: while they are being replaced, certificate and key may not
// match.
type certificates struct {
	files  CertificateFiles
	anyone bool // any client is let in, and the client's file is not read
	logger *slog.Logger

	mutex    sync.Mutex
	contents [3]string // those that last was made of
	failure  string    // why the files could not be used at the last handshake; empty if they could
	last     *tls.Config
}

func newCertificates(files CertificateFiles, logger *slog.Logger) (*certificates, error) {
	c := &certificates{files: files, logger: logger}
	return c, c.load()
}

// EndpointTLS returns the configuration of a server with the same certificate for clients that present none.
func EndpointTLS(files CertificateFiles, logger *slog.Logger) (*tls.Config, error) {
	c := &certificates{files: files, anyone: true, logger: logger}
	return &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: c.config}, c.load()
}

// config returns the TLS configuration for a handshake.
func (c *certificates) config(*tls.ClientHelloInfo) (*tls.Config, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	failure := ""
	if err := c.load(); err != nil {
		if failure = err.Error(); failure != c.failure {
			c.logger.Warn("cannot read the certificates; the last ones stay in use", "error", failure)
		}
	}
	c.failure = failure
	return c.last, nil
}

// load reads the files, and makes a configuration of them if they have changed.
func (c *certificates) load() error {
	var contents [3]string
	names := []string{c.files.ServerCert, c.files.ServerKey, c.files.ClientCert}
	if c.anyone {
		names = names[:2]
	}
	for i, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("read the certificates: %w", err)
		}
		contents[i] = string(content)
	}
	if contents == c.contents {
		return nil
	}
	pair, err := tls.X509KeyPair([]byte(contents[0]), []byte(contents[1]))
	if err != nil {
		return fmt.Errorf("read the server's certificate: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}}
	if !c.anyone {
		config.ClientAuth, config.NextProtos = tls.RequireAndVerifyClientCert, []string{"h2"}
		if config.ClientCAs, err = trusted([]byte(contents[2])); err != nil {
			return fmt.Errorf("read the client's certificate: %s: %w", c.files.ClientCert, err)
		}
	}
	c.contents, c.last = contents, config
	return nil
}

// trusted returns the certificates that the operator's must chain to: its own, and the CA that this package made for it
// alone, which signs its renewals. Any other issuer in the file may have signed other clients' certificates.
func trusted(text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	var leaf *x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse it: %w", err)
		}
		if leaf == nil {
			leaf = certificate
		}
		if certificate == leaf || isAuthorityOf(certificate, leaf) {
			pool.AddCert(certificate)
		}
	}
	if leaf == nil {
		return nil, errNoCertificate
	}
	return pool, nil
}

// errNoCertificate means that a file has no certificate.
var errNoCertificate = errors.New("it holds no certificate")

// mutual is mutual TLS. A connection holds one of the strangers' slots until its handshake has authenticated it as the
// operator's.
type mutual struct {
	credentials.TransportCredentials
}

// ServerHandshake performs the handshake.
func (m mutual) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := m.TransportCredentials.ServerHandshake(raw)
	if limited, ok := raw.(*httpserver.Conn); ok && err == nil {
		limited.Keep()
	}
	return conn, info, err
}

// Clone copies the credentials.
func (m mutual) Clone() credentials.TransportCredentials {
	return mutual{m.TransportCredentials.Clone()}
}

// Expiry returns when the server's and the client's certificates expire. The client's file begins with the certificate
// that the operator presents.
func (f CertificateFiles) Expiry() (map[string]time.Time, error) {
	ends := map[string]time.Time{}
	for name, path := range map[string]string{"server": f.ServerCert, "client": f.ClientCert} {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read the %s's certificate: %w", name, err)
		}
		block, _ := pem.Decode(content)
		if block == nil {
			return nil, fmt.Errorf("read the %s's certificate: %s holds none", name, path)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read the %s's certificate: %w", name, err)
		}
		ends[name] = certificate.NotAfter
	}
	return ends, nil
}
