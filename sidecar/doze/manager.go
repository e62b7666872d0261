package doze

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// statusURL is where CloudNativePG's instance manager serves its status, without authentication (1.30:
	// pkg/management/postgres/webserver/remote.go). The containers of a pod share the loopback interface. Every pod
	// that was created by 1.28 or later serves it over TLS (specs.NewInstance in
	// internal/controller/cluster_create.go).
	statusURL = "https://127.0.0.1:8000/pg/status"
	// statusTimeout bounds one request, for which the manager queries PostgreSQL. On a busy node an answer has taken
	// 0.9 seconds.
	statusTimeout = 2 * time.Second
	// maximumStatus is the maximum size of an answer in bytes; answers of some kilobytes have been observed.
	maximumStatus = 256 << 10
)

// errStatus means that the instance manager gave no usable answer.
var errStatus = errors.New("unusable answer of the instance manager")

// manager is a client of the instance manager.
type manager struct {
	url  string
	http *http.Client
}

func newManager(url string) *manager {
	return &manager{url: url, http: &http.Client{
		Timeout: statusTimeout,
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 8 << 10,
			// The certificate is for the names of the Services, and a program that could answer here could also read the
			// secret.
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// mightBeUnavailable returns the flag by which the instance manager tolerates that PostgreSQL is down: set from the
// moment it obeys a fence until about five seconds after the start that follows.
func (m *manager) mightBeUnavailable(ctx context.Context) (bool, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url, nil)
	if err != nil {
		return false, fmt.Errorf("make the request: %w", err)
	}
	answer, err := m.http.Do(request)
	if err != nil {
		return false, fmt.Errorf("ask the instance manager: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return false, fmt.Errorf("%w: status %d", errStatus, answer.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maximumStatus+1))
	if err != nil {
		return false, fmt.Errorf("read the instance manager's answer: %w", err)
	}
	return parseStatus(body)
}

// parseStatus reads the flag from an answer (PostgresqlStatus in pkg/postgres/status.go).
func parseStatus(body []byte) (bool, error) {
	if len(body) > maximumStatus {
		return false, fmt.Errorf("%w: more than %d bytes", errStatus, maximumStatus)
	}
	var status struct {
		MightBeUnavailable *bool `json:"mightBeUnavailable"`
	}
	if err := json.Unmarshal(body, &status); err != nil {
		return false, fmt.Errorf("%w: %w", errStatus, err)
	}
	if status.MightBeUnavailable == nil {
		return false, fmt.Errorf("%w: it has no mightBeUnavailable", errStatus)
	}
	return *status.MightBeUnavailable, nil
}
