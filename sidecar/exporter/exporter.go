// Package exporter scrapes the operator's exporter of the same pod, as Prometheus does. What matters is not what it answers but
// that it logs in to the databases meanwhile, at a time that we know.
package exporter

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// address is where the instance manager serves its metrics (1.30: pkg/management/url, PostgresMetricsPort).
	address = "127.0.0.1:9187"
	// timeout bounds one scrape. The exporter goes on with what it has begun.
	timeout = time.Second
	// longestAnswer bounds, in bytes, what is read of an answer. There may be metrics of many tables.
	longestAnswer = 64 << 20
)

// errStatus says that the exporter has no metrics.
var errStatus = errors.New("unusable answer")

// Exporter is the operator's, in this pod.
type Exporter struct {
	address string
	http    *http.Client
}

// New makes the exporter of this pod.
func New() Exporter { return at(address) }

func at(address string) Exporter {
	return Exporter{address: address, http: &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
			// The certificate names the cluster's Services and not the loopback interface.
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}, //nolint:gosec // nothing it says is used
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Scrape asks for the metrics, over TLS where the Cluster says so, and waits for them, a second at most.
func (e Exporter) Scrape(ctx context.Context, encrypted bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	scheme := "http"
	if encrypted {
		scheme = "https"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+e.address+"/metrics", nil)
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	answer, err := e.http.Do(request)
	if err != nil {
		return fmt.Errorf("scrape the exporter: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("scrape the exporter: %w: status %d", errStatus, answer.StatusCode)
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(answer.Body, longestAnswer)); err != nil {
		return fmt.Errorf("scrape the exporter: %w", err)
	}
	return nil
}
