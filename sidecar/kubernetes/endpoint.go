package kubernetes

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// ErrNotInCluster means that the environment names no API server.
var ErrNotInCluster = errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must both be set")

// Endpoint defines how to reach the API server and authenticate to it.
type Endpoint struct {
	// URL is the API server's URL, such as https://10.96.0.1:443.
	URL string
	// CAFile holds the CA certificates for the API server; empty for the system's.
	CAFile string
	// TokenFile holds the bearer token; empty for none. It is read again at least every minute, because the kubelet
	// rotates it.
	TokenFile string
}

// InCluster returns the API server of the pod that this process runs in. lookup reads the environment.
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
