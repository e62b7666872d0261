package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cnpg-i/scale-to-zero/internal/postgrestest"
)

// sleeping is a real server that is stopped until a client connects through the gateway.
type sleeping struct {
	running
	backend *fakeBackend
	server  *postgrestest.Server
	// wanted is closed when a client has connected, awake when the server accepts sessions.
	wanted, awake chan struct{}
	// mistaken makes the backend claim once that the server accepts sessions.
	mistaken atomic.Bool
}

// sleep configures TLS and the roles ann (with a password) and certified (with a certificate), and stops the server.
func sleep(t *testing.T, server *postgrestest.Server) *sleeping {
	t.Helper()
	server.Execute(t, "create role ann login password 'secret'", "create role certified login")
	server.Stop(t)
	pki(t, server)
	edit := func(name string, change func(string) string) {
		path := filepath.Join(server.Directory, "data", name)
		content, err := os.ReadFile(path)
		must(t, err)
		must(t, os.WriteFile(path, []byte(change(string(content))), 0o600))
	}
	edit("postgresql.auto.conf", func(s string) string { return s + "ssl=on\nssl_ca_file='ca.crt'\n" })
	edit("pg_hba.conf", func(s string) string { return "hostssl all certified all cert\n" + s })

	s := &sleeping{server: server, wanted: make(chan struct{}), awake: make(chan struct{})}
	target := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), server.Port)
	var once sync.Once
	s.backend = &fakeBackend{running: []netip.AddrPort{target}, resolve: func(ctx context.Context, _ Client) (netip.AddrPort, error) {
		if s.mistaken.CompareAndSwap(true, false) {
			return target, nil
		}
		once.Do(func() { close(s.wanted) })
		select {
		case <-s.awake:
			return target, nil
		case <-ctx.Done():
			return netip.AddrPort{}, ctx.Err()
		}
	}}
	s.running = run(t, s.backend, nil)
	return s
}

// wake starts the server once the given number of clients is held.
func (s *sleeping) wake(t *testing.T, clients int) {
	t.Helper()
	<-s.wanted
	s.ledger.await(t, "held", clients)
	s.server.Start(t)
	close(s.awake)
}

// port is the gateway's.
func (s *sleeping) port(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(s.address)
	must(t, err)
	return port
}

// psql runs a query with the server's own psql and returns what it printed.
func (s *sleeping) psql(t *testing.T, settings, query string) (string, error) {
	root, inside := filepath.Dir(filepath.Dir(s.server.Directory)), "/tmp/"+filepath.Base(s.server.Directory)+"/data/"
	settings = fmt.Sprintf("host=localhost port=%s dbname=postgres sslrootcert=%sca.crt %s", s.port(t), inside, strings.ReplaceAll(settings, "DATA/", inside))
	psql := exec.CommandContext(t.Context(), fmt.Sprintf("/usr/lib/postgresql/%d/bin/psql", s.server.Major), "-XAtq", "-c", query, settings)
	psql.Dir = "/"
	psql.Env = []string{"HOME=/tmp", "PGHOSTADDR=127.0.0.1", "PGPASSWORD=secret", "LANG=C.UTF-8"}
	psql.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	out, err := psql.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// pgx runs a query with pgx and returns what it got.
func (s *sleeping) pgx(t *testing.T, settings, query string) (string, error) {
	conn, err := pgx.Connect(t.Context(), fmt.Sprintf("host=localhost port=%s dbname=postgres password=secret sslrootcert=%s %s",
		s.port(t), filepath.Join(s.server.Directory, "data", "ca.crt"), settings))
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	var got string
	err = conn.QueryRow(t.Context(), query).Scan(&got)
	return got, err
}

// TestClientsOfASleepingServerGetAnAnswer connects real clients in every way to a stopped server, and starts it.
func TestClientsOfASleepingServerGetAnAnswer(t *testing.T) {
	t.Parallel()
	const (
		whoami = "select current_user || ' ' || ssl::text || ' ' || coalesce(client_dn, '-') from pg_stat_ssl where pid = pg_backend_pid()"
		plus   = "sslmode=verify-full channel_binding=require user=ann"
	)
	postgrestest.Each(t, func(t *testing.T, server *postgrestest.Server) {
		s := sleep(t, server)
		rows := []struct {
			rule   string
			client func(*testing.T, string, string) (string, error)
			set    string
			want   string
			oldest int
		}{
			{"psql without TLS", s.psql, "sslmode=disable user=ann", "ann false -", 0},
			{"psql as it is", s.psql, "user=ann", "ann true -", 0},
			{"psql proves the server and binds the channel", s.psql, plus, "ann true -", 0},
			{"psql with a client certificate", s.psql, "sslmode=verify-full user=certified sslcert=DATA/client.crt sslkey=DATA/client.key", "certified true /CN=certified", 0},
			{"psql with TLS from the first byte", s.psql, plus + " sslnegotiation=direct", "ann true -", 17},
			{"psql with protocol 3.2", s.psql, plus + " max_protocol_version=3.2", "ann true -", 18},
			{"pgx without TLS", s.pgx, "sslmode=disable user=ann", "ann false -", 0},
			{"pgx proves the server and binds the channel", s.pgx, plus, "ann true -", 0},
			{"pgx with TLS from the first byte", s.pgx, plus + " sslnegotiation=direct", "ann true -", 17},
		}
		var clients sync.WaitGroup
		count := 0
		for _, row := range rows {
			if server.Major < row.oldest {
				continue
			}
			count++
			clients.Go(func() {
				if got, err := row.client(t, row.set, whoami); err != nil || got != row.want {
					t.Errorf("%s: got %q and %v, want %q", row.rule, got, err, row.want)
				}
			})
		}
		s.wake(t, count)
		clients.Wait()
		s.ledger.await(t, "took connect", count)
	})
}

func TestTwoHundredClientsWakeAtOnce(t *testing.T) {
	t.Parallel()
	const count = 200
	postgrestest.From(t, 18, func(t *testing.T, server *postgrestest.Server) {
		s := sleep(t, server)
		var clients sync.WaitGroup
		for i := range count {
			mode := []string{"disable", "verify-full"}[i%2]
			clients.Go(func() {
				if got, err := s.pgx(t, "user=ann sslmode="+mode, "select 'answer'"); err != nil || got != "answer" {
					t.Errorf("client %d: got %q and %v", i, got, err)
				}
			})
		}
		s.wake(t, count)
		clients.Wait()
	}, "max_connections=250")
}

func TestACancelRequestCancelsAQuery(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, server *postgrestest.Server) {
		s := sleep(t, server)
		done := make(chan error, 1)
		backend := make(chan *pgx.Conn, 1)
		go func() {
			conn, err := pgx.Connect(t.Context(), fmt.Sprintf("host=127.0.0.1 port=%s dbname=postgres user=ann password=secret sslmode=disable", s.port(t)))
			backend <- conn
			if err != nil {
				done <- err
				return
			}
			_, err = conn.Exec(t.Context(), "select pg_sleep(600)")
			done <- errors.Join(err, conn.Close(context.WithoutCancel(t.Context())))
		}()
		s.wake(t, 1)
		conn := <-backend
		if conn == nil {
			t.Fatal(<-done)
		}
		// A request that arrives before the query cancels nothing.
		watcher := server.Connect(t, "postgres", "postgres")
		for running := false; !running; {
			must(t, watcher.QueryRow(t.Context(), "select exists (select from pg_stat_activity where wait_event = 'PgSleep')").Scan(&running))
		}
		must(t, conn.PgConn().CancelRequest(t.Context()))
		var refused *pgconn.PgError
		if err := <-done; !errors.As(err, &refused) || refused.Code != "57014" {
			t.Errorf("the query ended with %v", err)
		}
	})
}

// TestAServerThatShutsDownIsWaitedFor uses a server that answers 57P03 because its shutdown waits for a session. The client only
// sees answers of the server that is started next.
func TestAServerThatShutsDownIsWaitedFor(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, server *postgrestest.Server) {
		s := sleep(t, server)
		server.Start(t)
		last := server.Connect(t, "postgres", "postgres")
		must(t, server.Signal(syscall.SIGTERM)) // a smart shutdown
		for !strings.Contains(server.Log(), "received smart shutdown request") {
			runtime.Gosched()
		}
		s.mistaken.Store(true)
		answer := make(chan string, 1)
		go func() {
			got, err := s.psql(t, "user=ann sslmode=disable", "select 'answer'")
			answer <- fmt.Sprint(got, err)
		}()
		<-s.wanted
		must(t, last.Close(t.Context()))
		<-server.Ended()
		s.wake(t, 1)
		if got := <-answer; got != "answer<nil>" {
			t.Errorf("psql got %s", got)
		}
	})
}
