package pages

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
)

// peerPage is what replicas ask each other for.
const peerPage = "/peer"

// Prober asks replicas for /peer, each time over a connection of its own, as a client's is.
type Prober struct {
	port   string
	client *http.Client
}

// NewProber makes one of replicas that serve their pages on the same port as this one, whose address that is.
func NewProber(address string) (*Prober, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("read the port of the pages: %w", err)
	}
	return &Prober{port: port, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}, nil
}

// Ask fails unless the replica answers before the context ends.
func (p *Prober) Ask(ctx context.Context, replica netip.Addr) error {
	page := "http://" + net.JoinHostPort(replica.String(), p.port) + peerPage
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", page, err)
	}
	response, err := p.client.Do(request)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", page, err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("ask for %s: %s", page, response.Status)
	}
	return nil
}
