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
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

func TestInCluster_isThePodsOwn(t *testing.T) {
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

func TestConnect_sendsTheTokenToAServerThatTheAuthorityVouchesFor(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Authorization")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(clusterWith()))
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // it would log the handshake that is meant to fail
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
	t.Cleanup(c.rest.Client.CloseIdleConnections)
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
	t.Cleanup(stranger.rest.Client.CloseIdleConnections)
	if _, err := stranger.Get(t.Context()); err == nil {
		t.Error("a server that nobody vouches for was believed")
	}
}

func TestConnect_readsTheTokenFileAgain(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("first"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var sent []string
		config := configure(Endpoint{URL: "http://api", TokenFile: file}, blue)
		config.Transport = tripper(func(r *http.Request) (*http.Response, error) {
			sent = append(sent, r.Header.Get("Authorization"))
			return said(strings.NewReader(clusterWith())), nil
		})
		transport, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		c, err := newClient(config, transport, blue, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		for _, token := range []string{"first", "second"} {
			if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Get(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		if want := []string{"Bearer first", "Bearer second"}; !slices.Equal(sent, want) {
			t.Errorf("sent %q", sent)
		}
	})
}

func TestConnect_refusesWhatCannotWork(t *testing.T) {
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
