package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// TestMain doubles as the worker: it writes its number and waits for SIGTERM.
func TestMain(m *testing.M) {
	if os.Getenv("SUPERVISED") != "" {
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		fmt.Println("worker", os.Getpid())
		<-stop
		fmt.Println("signalled to end")
		return
	}
	goleak.VerifyTestMain(m)
}

// supervise supervises this test's binary and returns the worker's output and a function that stops it.
func supervise(t *testing.T) (*bufio.Scanner, func()) {
	t.Helper()
	output, input := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		(&supervisor{
			command: []string{"/proc/self/exe"}, environment: []string{"SUPERVISED=1"}, output: input,
			logger: slog.New(slog.DiscardHandler),
		}).run(ctx)
		_ = input.Close()
	}()
	return bufio.NewScanner(output), func() { cancel(); <-done }
}

func nextWorker(t *testing.T, lines *bufio.Scanner) int {
	t.Helper()
	for lines.Scan() {
		if number, ok := strings.CutPrefix(lines.Text(), "worker "); ok {
			pid, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatal("no worker was started")
	return 0
}

func TestSupervisor_startsADeadWorkerAgain(t *testing.T) {
	t.Parallel()
	lines, stop := supervise(t)
	seen := map[int]bool{}
	for range 4 {
		pid := nextWorker(t, lines)
		if seen[pid] {
			t.Fatalf("worker %d was started twice", pid)
		}
		seen[pid] = true
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	nextWorker(t, lines)
	go func() {
		for lines.Scan() {
			continue
		}
	}()
	stop()
}

func TestSupervisor_passesTheEndOnAtOnce(t *testing.T) {
	t.Parallel()
	lines, stop := supervise(t)
	pid := nextWorker(t, lines)
	said := make(chan bool, 1)
	go func() {
		found := false
		for lines.Scan() {
			found = found || lines.Text() == "signalled to end"
		}
		said <- found
	}()
	stop()
	if !<-said { // it would have been killed
		t.Error("the worker got no signal to end")
	}
	if syscall.Kill(pid, 0) == nil {
		t.Error("the worker outlives its supervisor")
	}
}

func TestSettings_areReadWhereThePluginWritesThem(t *testing.T) {
	t.Parallel()
	for copied, written := range map[string]string{
		limitVariable: contract.EnvMemoryLimit, portVariable: contract.EnvReadinessPort, path.Dir(readinessSocket): contract.SidecarDirectory,
	} {
		if copied != written {
			t.Errorf("read from %s, written to %s", copied, written)
		}
	}
}

func TestMemoryLimit_leavesRoomForTheSupervisor(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ rule, limit, want string }{
		{"three quarters of the limit", "67108864", "50331648"},
		{"without a limit none is set", "", ""},
		{"what is no number sets none", "64Mi", ""},
		{"nothing is no limit", "0", ""},
	} {
		if got := memoryLimit(row.limit); got != row.want {
			t.Errorf("%s: %q, want %q", row.rule, got, row.want)
		}
	}
}
