package control

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/monitor"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
	"github.com/cnpg-i/scale-to-zero/sidecar/sockets"
)

const (
	// stormPort is the variable with which a benchmark passes the port to observe to a second process of this program.
	stormPort = "STORM_PORT"
	// stormRate is how many sessions begin and end each second.
	stormRate = 5000
	// stormSources is the number of their source addresses: the ports of one would soon run out.
	stormSources = 16
)

// costs is what an observing process has done since it started.
type costs struct {
	Samples int           `json:"samples"`
	Judged  int           `json:"judged"`
	CPU     time.Duration `json:"cpu"`
}

// BenchmarkStorm opens and ends 5,000 sessions a second at a server that does nothing else, so that PostgreSQL is not the limit.
// A loop in a separate process observes it with the kernel's own reports; the database and the API server are fakes. It reports
// how often the loop samples, how many ended sessions are reported to it, and its process's CPU time.
func BenchmarkStorm(b *testing.B) {
	for _, storm := range []struct {
		what string
		sent int // bytes that each client sends
	}{{"bare-connects", 0}, {"clients", 500}} {
		b.Run(storm.what, func(b *testing.B) {
			listener, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			var group sync.WaitGroup
			group.Go(func() { answerAll(listener) })
			ask := watcher(b, listener.Addr().(*net.TCPAddr).Port)
			var count atomic.Int64
			b.SetParallelism(stormSources)
			before, start := ask(), time.Now()
			b.ResetTimer()
			b.RunParallel(func(turn *testing.PB) {
				for turn.Next() {
					i := count.Add(1)
					time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / stormRate))) // the pace
					if err := comeAndGo(b.Context(), int(i), storm.sent, listener.Addr().String()); err != nil {
						b.Error(err)
					}
				}
			})
			seconds, after := time.Since(start).Seconds(), ask()
			b.ReportMetric(float64(b.N)/seconds, "sessions/s")
			b.ReportMetric(float64(after.Samples-before.Samples)/seconds, "samples/s")
			b.ReportMetric(float64(after.Judged-before.Judged)/seconds, "reports/s")
			b.ReportMetric(100*(after.CPU-before.CPU).Seconds()/seconds, "%-of-a-core")
			_ = listener.Close()
			group.Wait()
		})
	}
}

// answerAll reads what each client sends, and then closes the connection.
func answerAll(listener net.Listener) {
	var group sync.WaitGroup
	defer group.Wait()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		group.Go(func() {
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		})
	}
}

// comeAndGo is one session. It does not use the address of our own tests of the reports.
func comeAndGo(ctx context.Context, i, sent int, address string) error {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%stormSources))}}
	conn, err := dialer.DialContext(ctx, "tcp4", address)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write(make([]byte, sent)); err != nil {
		return fmt.Errorf("begin the session: %w", err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return fmt.Errorf("end the session: %w", err)
	}
	_, _ = io.Copy(io.Discard, conn)
	return nil
}

// watcher starts a process that observes the port, and returns a function that queries its costs.
func watcher(b *testing.B, port int) func() costs {
	command := exec.Command(os.Args[0])
	command.Env, command.Stderr = append(os.Environ(), stormPort+"="+strconv.Itoa(port)), os.Stderr
	questions, err := command.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	answers, err := command.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := command.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = questions.Close()
		if err := command.Wait(); err != nil {
			b.Error(err)
		}
	})
	decoder := json.NewDecoder(answers)
	return func() (c costs) {
		if _, err := fmt.Fprintln(questions); err != nil {
			b.Fatal(err)
		}
		if err := decoder.Decode(&c); err != nil {
			b.Fatal(err)
		}
		return c
	}
}

// watch runs a loop that observes the sessions of a port, and writes its costs whenever asked. It starts to answer after the
// loop's first sample.
func watch(port uint16) error {
	debug.SetGCPercent(25) // as the worker
	w := &world{view: healthy(), ledger: activity.Ledger{"postgres": {}, "app": {}}, clientAddrs: monitor.NewClientAddrs()}
	w.view.Annotations[contract.AnnotationInactivityMinutes] = "600"
	sampled := make(chan struct{})
	first := sync.OnceFunc(func() { close(sampled) })
	w.inSample = func(*world) { first() }
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	w.monitor = monitor.New(monitor.Parts{
		Sampler: w, Server: w, Checkpoints: w, ClientAddrs: w.clientAddrs, Observer: w, Logger: logger,
		OpenEvents: func() (monitor.SocketEvents, error) { return sockets.Listen(port) },
		Listen:     func(string, func(postgres.Notification), func(error)) monitor.Listener { return w },
	})
	loop := New(Parts{
		Monitor: w.monitor, Kubernetes: w, Observer: w, Siblings: w, Marker: &w.marker, Pod: "c-1", PodUID: "pod-uid", Logger: logger,
		Counts:         (*savedCounts)(w),
		OpenTerminator: w.openTerminator,
	})
	loop.Deliver(w.seen())
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { loop.Run(ctx) })
	defer group.Wait()
	defer cancel()
	<-sampled
	encoder := json.NewEncoder(os.Stdout)
	for questions := bufio.NewScanner(os.Stdin); questions.Scan(); {
		var used unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &used); err != nil {
			return fmt.Errorf("read the processor time: %w", err)
		}
		var c costs
		w.with(func(w *world) {
			c = costs{Samples: w.samples, Judged: len(w.verdicts), CPU: time.Duration(used.Nano())}
		})
		if err := encoder.Encode(c); err != nil {
			return fmt.Errorf("write the costs: %w", err)
		}
	}
	return nil
}
