package grpcserver

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

	"google.golang.org/grpc/credentials"

	provisioned "github.com/cnpg-i/scale-to-zero/plugin/certificates"
	"github.com/cnpg-i/scale-to-zero/sidecar/connlimit"
)

// Files are the paths of the certificates, which may change.
type Files struct{ ServerCert, ServerKey, ClientCert string }

// certificates reads the files again when they have changed, and keeps the last consistent set: while they are being replaced,
// certificate and key may not match.
type certificates struct {
	files  Files
	logger *slog.Logger

	mutex  sync.Mutex
	read   state  // of the files when last read
	failed *state // of the files when reading them last failed; nil if it succeeded
	last   *tls.Config
}

func newCertificates(files Files, logger *slog.Logger) (*certificates, error) {
	read := stateOf(files)
	config, err := load(files)
	if err != nil {
		return nil, err
	}
	return &certificates{files: files, logger: logger, read: read, last: config}, nil
}

// config returns the TLS configuration for a handshake.
func (c *certificates) config(*tls.ClientHelloInfo) (*tls.Config, error) {
	now := stateOf(c.files)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if now.equal(c.read) {
		return c.last, nil
	}
	config, err := load(c.files)
	if err != nil {
		if c.failed == nil || !now.equal(*c.failed) {
			c.logger.Warn("the certificates cannot be read; the last ones stay in use", "error", err.Error())
		}
		c.failed = &now
		return c.last, nil
	}
	c.read, c.failed, c.last = now, nil, config // the files may have changed again since stateOf, and are then read once more
	return config, nil
}

// state identifies the versions of the files.
type state [3]os.FileInfo

func stateOf(files Files) (s state) {
	for i, name := range []string{files.ServerCert, files.ServerKey, files.ClientCert} {
		s[i], _ = os.Stat(name) // nil if missing
	}
	return s
}

func (s state) equal(other state) bool {
	for i, info := range s {
		was := other[i]
		if (info == nil) != (was == nil) {
			return false
		}
		if info != nil && (!os.SameFile(info, was) || !info.ModTime().Equal(was.ModTime()) || info.Size() != was.Size()) {
			return false
		}
	}
	return true
}

func load(files Files) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(files.ServerCert, files.ServerKey)
	if err != nil {
		return nil, fmt.Errorf("read the server's certificate: %w", err)
	}
	client, err := os.ReadFile(files.ClientCert)
	if err != nil {
		return nil, fmt.Errorf("read the client's certificate: %w", err)
	}
	pool, err := trusted(client)
	if err != nil {
		return nil, fmt.Errorf("read the client's certificate: %s: %w", files.ClientCert, err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, NextProtos: []string{"h2"},
	}, nil
}

// trusted returns what the operator may present: the first certificate, and one that its own authority signs at a renewal. Any other
// certificate above the first is an issuer's, which signs for others too.
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
		if certificate == leaf || provisioned.IsAuthorityOf(certificate, leaf) {
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
	if limited, ok := raw.(*connlimit.Conn); ok && err == nil {
		limited.Keep()
	}
	return conn, info, err
}

// Clone copies the credentials.
func (m mutual) Clone() credentials.TransportCredentials {
	return mutual{m.TransportCredentials.Clone()}
}
