package exporter

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScrape(t *testing.T) {
	t.Parallel()
	metrics := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
		}
	}
	for _, row := range []struct {
		rule      string
		serve     http.HandlerFunc
		served    bool // over TLS
		encrypted bool
		want      string // part of the error; empty: none
	}{
		{"metrics are read", metrics, false, false, ""},
		{"over TLS as well, whoever the certificate names", metrics, true, true, ""},
		{"plain where it is TLS is an error", metrics, true, false, "status 400"},
		{"TLS where it is plain is one", metrics, false, true, "server gave HTTP response"},
		{"a redirect is not followed", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/metrics")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, false, false, "status 307"},
		{"any other status is one", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, false, false, "status 503"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewUnstartedServer(row.serve)
			if row.served {
				server.StartTLS()
			} else {
				server.Start()
			}
			defer server.Close()
			err := at(server.Listener.Addr().String()).Scrape(t.Context(), row.encrypted)
			if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
				t.Errorf("%v, want %q", err, row.want)
			}
		})
	}
}

func TestScrapeIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := at("unused")
		e.http.Transport = silent{}
		begun := time.Now()
		if err := e.Scrape(t.Context(), false); err == nil || time.Since(begun) != timeout {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
	})
}

// silent never answers.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, context.Cause(r.Context())
}
