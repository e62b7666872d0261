package siblings

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAsk(t *testing.T) {
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
		{"what is too long is not", good + strings.Repeat(" ", maximumAnswer), 200, false},
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
			answers := NewClient("c", address.Port()).Ask(t.Context(), map[string]netip.Addr{"c-2": address.Addr()})
			if len(answers) != 1 || answers[0].Pod != "c-2" || (answers[0].Err == nil) != row.usable {
				t.Errorf("answers %+v", answers)
			}
		})
	}
}

func TestAnInstanceIsAskedOverIPv6(t *testing.T) {
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
	if answers := NewClient("c", address.Port()).Ask(t.Context(), map[string]netip.Addr{"c-2": address.Addr()}); answers[0].Err != nil {
		t.Error(answers[0].Err)
	}
}

// One that does not answer keeps nobody waiting for longer than the timeout, and the others are heard.
func TestSilence(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, _ *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	address := server.Listener.Addr().(*net.TCPAddr).AddrPort()
	answers := NewClient("c", address.Port()).Ask(t.Context(), map[string]netip.Addr{"c-2": address.Addr(), "c-3": address.Addr()})
	if len(answers) != 2 || answers[0].Err == nil || answers[1].Err == nil {
		t.Errorf("answers %+v", answers)
	}
	if answers := NewClient("c", 1).Ask(t.Context(), nil); len(answers) != 0 {
		t.Errorf("answers of nobody: %+v", answers)
	}
}
