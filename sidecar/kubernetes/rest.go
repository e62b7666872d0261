package kubernetes

import (
	"log/slog"

	"k8s.io/client-go/rest"
)

// New makes a client from the host, the authority and the token file of a configuration.
func New(config *rest.Config, identity Identity, logger *slog.Logger) (*Client, error) {
	return Connect(Endpoint{URL: config.Host, CAFile: config.CAFile, TokenFile: config.BearerTokenFile}, identity, logger)
}
