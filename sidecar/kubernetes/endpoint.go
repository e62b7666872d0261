package kubernetes

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// ErrNotInCluster says that the environment names no API server.
var ErrNotInCluster = errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must both be set")

// Endpoint says how to reach the API server, and as whom.
type Endpoint struct {
	// URL is the API server's, such as https://10.96.0.1:443.
	URL string
	// CAFile holds the certificates of the authorities that may vouch for the API server; empty: those of the machine.
	CAFile string
	// TokenFile holds the bearer token; it is read again at least every minute, since kubelet renews it. Empty: no token.
	TokenFile string
}

// InCluster is the API server of the pod that this process runs in. lookup reads the environment.
func InCluster(lookup func(string) string) (Endpoint, error) {
	host, port := lookup("KUBERNETES_SERVICE_HOST"), lookup("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return Endpoint{}, fmt.Errorf("find the API server: %w", ErrNotInCluster)
	}
	return Endpoint{
		URL:       (&url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)}).String(),
		CAFile:    filepath.Join(contract.TokenDirectory, "ca.crt"),
		TokenFile: filepath.Join(contract.TokenDirectory, "token"),
	}, nil
}
