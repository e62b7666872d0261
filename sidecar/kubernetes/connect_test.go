package kubernetes

import (
	"encoding/pem"
	"errors"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

func TestInClusterIsThePodsOwn(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ rule, host, port, want string }{
		{"an address and a port", "10.96.0.1", "443", "https://10.96.0.1:443"},
		{"an IPv6 address", "fd00::1", "6443", "https://[fd00::1]:6443"},
		{"no host", "", "443", ""},
		{"no port", "10.96.0.1", "", ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			environment := map[string]string{"KUBERNETES_SERVICE_HOST": row.host, "KUBERNETES_SERVICE_PORT": row.port}
			endpoint, err := InCluster(func(name string) string { return environment[name] })
			if endpoint.URL != row.want || (err != nil) != (row.want == "") {
				t.Errorf("URL %q, error %v", endpoint.URL, err)
			}
			if err != nil && !errors.Is(err, ErrNotInCluster) {
				t.Errorf("error: %v", err)
			}
		})
	}
}

func TestTokenIsSentToAServerThatTheAuthorityVouchesFor(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Authorization")
		_, _ = w.Write([]byte(clusterWith()))
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // it tells of the handshake that is meant to fail
	server.StartTLS()
	t.Cleanup(server.Close)
	endpoint := Endpoint{URL: server.URL, CAFile: filepath.Join(t.TempDir(), "ca.crt"), TokenFile: filepath.Join(t.TempDir(), "token")}
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := errors.Join(os.WriteFile(endpoint.CAFile, authority, 0o600), os.WriteFile(endpoint.TokenFile, []byte("secret\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	c, err := Connect(endpoint, blue, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.http.CloseIdleConnections)
	if v, err := c.Get(t.Context()); err != nil || v.Name != "blue" {
		t.Errorf("view %q, error %v", v.Name, err)
	}
	if got := <-asked; got != "Bearer secret" {
		t.Errorf("authorization %q", got)
	}
	endpoint.CAFile = ""
	stranger, err := Connect(endpoint, blue, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stranger.http.CloseIdleConnections)
	if _, err := stranger.Get(t.Context()); err == nil {
		t.Error("a server that nobody vouches for was believed")
	}
}

func TestConnectRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule     string
		endpoint Endpoint
	}{
		{"a URL that is none", Endpoint{URL: "https://%zz"}},
		{"an authority that is not there", Endpoint{URL: "https://10.96.0.1", CAFile: filepath.Join(t.TempDir(), "absent")}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if _, err := Connect(row.endpoint, blue, slog.New(slog.DiscardHandler)); err == nil {
				t.Error("connected")
			}
		})
	}
}
