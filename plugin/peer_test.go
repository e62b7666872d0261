package main

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"
)

func TestPeerProber_ask(t *testing.T) {
	t.Parallel()
	here := netip.MustParseAddr("127.0.0.1")
	silent := func(t *testing.T) string { // as a stopped process: the kernel takes the connection, and nobody answers
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		return listener.Addr().String()
	}
	for _, row := range []struct {
		rule    string
		address func(*testing.T) string
		lives   bool
	}{
		{"one that answers lives", func(t *testing.T) string { return start(t, pages(gauge(1), never, never)) }, true},
		{"one that the API server does not answer is of no use", func(t *testing.T) string { return start(t, pages(gauge(1), always, always)) }, false},
		{"one that says something else does not", func(t *testing.T) string { return start(t, http.NotFoundHandler()) }, false},
		{"one that says nothing does not", silent, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			prober, err := newPeerProber(row.address(t))
			if err != nil {
				t.Fatal(err)
			}
			limit := patience
			if !row.lives {
				limit = 100 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			if err := prober.ask(ctx, here); (err == nil) != row.lives {
				t.Errorf("the answer is %v", err)
			}
		})
	}
}
