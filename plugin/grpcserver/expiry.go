package grpcserver

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"time"
)

// Expiry returns when the server's and the client's certificates expire. The client's file begins with the certificate that the
// operator presents.
func (f Files) Expiry() (map[string]time.Time, error) {
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
