package control

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// patient is a client that waits for as long as a slow machine may take.
func patient(port uint16) *SiblingClient {
	c := NewSiblingClient("c", port)
	c.within, c.sampleWithin = time.Minute, time.Minute
	return c
}

func TestSiblingClient_takesOnlyTheAnswersOfTheInstances(t *testing.T) {
	t.Parallel()
	const good = `{"version":1,"cluster":"c","pod":"c-2","known":true,"active":false,"reason":"idle","blockers":[]}`
	for _, row := range []struct {
		rule, answer string
		status       int
		usable       bool
	}{
		{"an answer of that instance is taken", good, 200, true},
		{"one of another instance is not", strings.Replace(good, "c-2", "c-3", 1), 200, false},
		{"one of another cluster is not", strings.Replace(good, `"c"`, `"d"`, 1), 200, false},
		{"another version is not", strings.Replace(good, "1", "2", 1), 200, false},
		{"a failure is not", good, 500, false},
		{"a redirect is not followed", good, 302, false},
		{"what is too long is not", good + strings.Repeat(" ", contract.MaxReportBytes), 200, false},
		{"what is no JSON is not", "ok", 200, false},
		{"nothing is not", "", 200, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/activity" {
					t.Errorf("asked for %s", r.URL.Path)
				}
				w.WriteHeader(row.status)
				_, _ = w.Write([]byte(row.answer))
			}))
			defer server.Close()
			address := server.Listener.Addr().(*net.TCPAddr).AddrPort()
			answers := patient(address.Port()).Ask(t.Context(), map[string]netip.Addr{"c-2": address.Addr()}, false)
			if len(answers) != 1 || answers[0].Pod != "c-2" || (answers[0].Err == nil) != row.usable {
				t.Errorf("answers %+v", answers)
			}
		})
	}
}

func TestSiblingClient_asksOverIPv6(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("this machine has no IPv6: %v", err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"version":1,"cluster":"c","pod":"c-2","known":true,"active":false,"reason":"idle","blockers":[]}`))
	}))
	_ = server.Listener.Close()
	server.Listener = listener
	server.Start()
	defer server.Close()
	address := listener.Addr().(*net.TCPAddr).AddrPort()
	if answers := patient(address.Port()).Ask(t.Context(), map[string]netip.Addr{"c-2": address.Addr()}, false); answers[0].Err != nil {
		t.Error(answers[0].Err)
	}
}

func TestSiblingClient_wantsItsNonceBack(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule  string
		nonce func(asked string) string
		want  error
	}{
		{"an answer with the nonce of the request is taken", func(asked string) string { return asked }, nil},
		{"one without is of a sidecar that does not sample on demand", func(string) string { return "" }, errOutdated},
		{"one with another is of another request", func(string) string { return "another" }, errOutdated},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := contract.EncodeReport(contract.Report{Cluster: "c", Pod: "c-2", Nonce: row.nonce(r.URL.Query().Get(contract.QueryParameterSample))})
				if err != nil {
					t.Error(err)
				}
				_, _ = w.Write(body)
			}))
			defer server.Close()
			address := server.Listener.Addr().(*net.TCPAddr).AddrPort()
			answers := patient(address.Port()).Ask(t.Context(), map[string]netip.Addr{"c-2": address.Addr()}, true)
			if len(answers) != 1 || !errors.Is(answers[0].Err, row.want) {
				t.Errorf("answers %+v", answers)
			}
		})
	}
}

// An instance that does not answer delays the call by the timeout at most, and the other answers are used.
func TestSiblingClient_waitsForNobodyLongerThanTheTimeout(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, _ *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	address := server.Listener.Addr().(*net.TCPAddr).AddrPort()
	answers := NewSiblingClient("c", address.Port()).Ask(t.Context(), map[string]netip.Addr{"c-2": address.Addr(), "c-3": address.Addr()}, false)
	if len(answers) != 2 || answers[0].Err == nil || answers[1].Err == nil {
		t.Errorf("answers %+v", answers)
	}
	if answers := NewSiblingClient("c", 1).Ask(t.Context(), nil, false); len(answers) != 0 {
		t.Errorf("answers of nobody: %+v", answers)
	}
}
