package server

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cnpg-i/scale-to-zero/sidecar/process"
)

// startDrain serves a drain socket until the test ends.
func startDrain(t *testing.T, path string, drain func(context.Context)) {
	t.Helper()
	listener, err := process.ListenPrivate(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- answerDrains(ctx, listener, drain) }()
	t.Cleanup(func() {
		cancel()
		if err := receive(t, ended); err != nil {
			t.Errorf("ended with %v", err)
		}
	})
}

func TestDrain_returnsAfterTheSessionsAreClosed(t *testing.T) {
	t.Parallel()
	var drains atomic.Int32
	path := filepath.Join(t.TempDir(), "drain.sock")
	startDrain(t, path, func(context.Context) { drains.Add(1) })
	for want := range int32(3) { // the kubelet may run the hook more than once
		if err := Drain(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		if got := drains.Load(); got != want+1 {
			t.Errorf("drained %d times, want %d", got, want+1)
		}
	}
}

func TestDrain_hasNothingToDoWithoutAWorker(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	dead := filepath.Join(directory, "dead.sock")
	listener, err := process.ListenPrivate(dead)
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil { // like a killed process, this keeps the name
		t.Fatal(err)
	}
	if _, err := os.Lstat(dead); err != nil {
		t.Fatalf("the name was not kept: %v", err)
	}
	for _, row := range []struct{ rule, path string }{
		{"a socket that is not there belongs to nobody", filepath.Join(directory, "absent.sock")},
		{"a socket that nobody listens on belongs to a dead process", dead},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if err := Drain(t.Context(), row.path); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDrain_failsWithoutTheAnswer(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ rule, answer string }{
		{"a process that ends before it answers has drained nothing that we know of", ""},
		{"half an answer is none", "drai"},
		{"another answer is none", "refused\n"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "drain.sock")
			listener, err := process.ListenPrivate(path)
			if err != nil {
				t.Fatal(err)
			}
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, row.answer)
				_ = conn.Close()
			}()
			if err := Drain(t.Context(), path); err == nil || !strings.Contains(err.Error(), strconv.Quote(row.answer)) {
				t.Errorf("error: %v", err)
			}
			receive(t, answered)
			_ = listener.Close()
		})
	}
}

func TestDrain_waitsNoLongerThanItsCaller(t *testing.T) {
	t.Parallel()
	draining, release := make(chan struct{}), make(chan struct{})
	path := filepath.Join(t.TempDir(), "drain.sock")
	startDrain(t, path, func(context.Context) { close(draining); <-release })
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- Drain(ctx, path) }()
	receive(t, draining)
	cancel()
	if err := receive(t, result); !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
	close(release)
}

func TestServeDrain_endsWithTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	path := filepath.Join(t.TempDir(), "drain.sock")
	if err := ServeDrain(ctx, path, func(context.Context) { t.Error("drained for nobody") }); err != nil {
		t.Error(err)
	}
	if err := Drain(t.Context(), path); err != nil {
		t.Errorf("what an ended worker left: %v", err)
	}
}

func TestServeDrain_namesWhatFailed(t *testing.T) {
	t.Parallel()
	if err := ServeDrain(t.Context(), filepath.Join(t.TempDir(), "absent", "drain.sock"), func(context.Context) {}); err == nil {
		t.Error("a socket in a directory that is not there was made")
	}
}
