package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/httpserver"
	"github.com/cnpg-i/scale-to-zero/sidecar/monitor"
)

// patience bounds every wait; a passing test never reaches it.
const patience = time.Minute

// start serves the handler until the test calls end, which waits for it to stop.
func start(t *testing.T, handler http.Handler) (address string, end func() error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- httpserver.ServeListener(ctx, listener, handler, config(isSibling)) }()
	end = func() error {
		cancel()
		return receive(t, ended)
	}
	t.Cleanup(cancel)
	return listener.Addr().String(), end
}

// isSibling recognizes the cluster's instances.
func isSibling(address netip.Addr) bool { return address.String() == "127.0.0.7" }

// receive waits for a value.
func receive[T any](t *testing.T, values <-chan T) T {
	t.Helper()
	select {
	case v := <-values:
		return v
	case <-time.After(patience):
		t.Fatal("nothing happened")
		panic("unreachable")
	}
}

// TestServe_answersBesideIdleConnections opens more idle connections from strangers than are allowed.
func TestServe_answersBesideIdleConnections(t *testing.T) {
	t.Parallel()
	for rule, row := range map[string]struct {
		strangers func(int) string
		asker     string
	}{
		"anybody is answered beside one stranger":                       {func(int) string { return "127.0.0.9" }, "127.0.0.1"},
		"anybody is answered beside one at the same address":            {func(int) string { return "127.0.0.9" }, "127.0.0.9"},
		"an instance is answered beside as many strangers as it may be": {func(i int) string { return fmt.Sprintf("127.0.4.%d", i+1) }, "127.0.0.7"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			address, end := start(t, metricsOf().Handler("blue", "blue-1", monitor.NewClientAddrs(), nobody{}, unset))
			from := func(source string) net.Conn {
				dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: patience}
				conn, err := dialer.Dial("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
				return conn
			}
			for i := range 2 * maximumConnections {
				from(row.strangers(i))
			}
			asker := from(row.asker)
			_ = asker.SetDeadline(time.Now().Add(patience))
			for i := range 2 * maximumConnections {
				if rule != "anybody is answered beside one at the same address" {
					from(row.strangers(i))
				}
			}
			if _, err := io.WriteString(asker, "GET /healthz HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if answer, err := io.ReadAll(asker); !strings.HasSuffix(string(answer), "ok\n") {
				t.Errorf("answer: %q, %v", answer, err)
			}
			if err := end(); err != nil {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

// A sender can set the client address only for connections from its own address.
func TestHandler_takesClientAddressesIn(t *testing.T) {
	t.Parallel()
	table := monitor.NewClientAddrs()
	address, end := start(t, metricsOf().Handler("blue", "blue-1", table, nobody{}, unset))
	for body, want := range map[string]int{
		`{"version":1,"port":40000,"peer":"192.0.2.7:5000"}`: http.StatusNoContent,
		`{"version":9,"port":40001,"peer":"192.0.2.7:5000"}`: http.StatusBadRequest,
		`nonsense`: http.StatusBadRequest,
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+contract.PathClientAddress, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: %d, want %d", body, answer.StatusCode, want)
		}
	}
	for connection, want := range map[string]string{
		"127.0.0.1:40000": "192.0.2.7:5000",
		"127.0.0.1:40001": "127.0.0.1:40001",
		"10.0.0.1:40000":  "10.0.0.1:40000",
	} {
		if client := table.ClientAddr(netip.MustParseAddrPort(connection)); client.String() != want {
			t.Errorf("the client of %s is %s, want %s", connection, client, want)
		}
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

// askers are the addresses for which the instance is sampled.
type askers map[string]bool

func (a askers) SampleFor(_ context.Context, asker netip.Addr) bool { return a[asker.String()] }

func TestActivity_samplesForThoseWhoMayAsk(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, query, nonce string
		askers             askers
	}{
		{"an instance that asks for a sample gets one, with its nonce", "?sample=abc", "abc", askers{"127.0.0.1": true}},
		{"a stranger gets none", "?sample=abc", "forbidden", askers{"10.0.0.1": true}},
		{"who does not ask gets what was last seen", "", "", askers{"127.0.0.1": true}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			address, end := start(t, metricsOf().Handler("blue", "blue-1", monitor.NewClientAddrs(), row.askers, unset))
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/activity"+row.query, nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			if row.nonce == "forbidden" {
				if answer.StatusCode != http.StatusForbidden {
					t.Errorf("status %d", answer.StatusCode)
				}
				_ = end()
				return
			}
			report, err := contract.DecodeReport(body)
			if err != nil || report.Nonce != row.nonce {
				t.Errorf("nonce %q, %v", report.Nonce, err)
			}
			if err := end(); err != nil {
				t.Error(err)
			}
		})
	}
}
