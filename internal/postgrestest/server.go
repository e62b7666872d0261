// Package postgrestest starts real, private PostgreSQL servers for tests, with CloudNativePG's pg_hba.conf rules.
package postgrestest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cnpg-i/scale-to-zero/internal/porttest"
)

// user is PostgreSQL's uid in the root filesystems that the harness makes.
const user = 26

// ours marks the sessions of the harness itself: PostgreSQL shows a session for a moment after the client has closed
// it, and tests that count sessions must not count these.
const ours = "application_name=cnpg-instance-manager"

const (
	// patience bounds every wait for a server; a passing test never reaches it.
	patience = 2 * time.Minute
	// pause is the time between two looks at a server, which needs the processor too.
	pause = 10 * time.Millisecond
)

// Server is a running PostgreSQL server.
type Server struct {
	// Directory holds the socket, Port is its port, also on the loopback interface.
	Directory string
	Port      uint16
	// Major is its major version.
	Major int

	root, inside, binaries string
	process                *exec.Cmd
	ended                  chan struct{}
	log                    record
}

// record is a log that can be read while it is written.
type record struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.text.Write(p)
}

func (r *record) String() string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.text.String()
}

// Each runs the test on a server of every major version in TEST_POSTGRES_ROOTS, a list of root filesystems such as
// 15=DIR:17=DIR. Without it the test is skipped, or fails if REQUIRE_POSTGRES is set.
func Each(t *testing.T, test func(*testing.T, *Server)) {
	t.Helper()
	From(t, 0, test)
}

// From is Each without versions before oldest, and with further settings.
func From(t *testing.T, oldest int, test func(*testing.T, *Server), settings ...string) {
	t.Helper()
	roots := os.Getenv("TEST_POSTGRES_ROOTS")
	if roots == "" {
		if os.Getenv("REQUIRE_POSTGRES") != "" {
			t.Fatal("TEST_POSTGRES_ROOTS is not set, and REQUIRE_POSTGRES says that this test must run")
		}
		t.Skip("TEST_POSTGRES_ROOTS is not set (make unit sets it)")
	}
	for item := range strings.SplitSeq(roots, ":") {
		name, root, _ := strings.Cut(item, "=")
		major, err := strconv.Atoi(name)
		must(t, err)
		if major < oldest {
			continue
		}
		t.Run("PostgreSQL "+name, func(t *testing.T) {
			t.Parallel()
			test(t, start(t, root, major, settings))
		})
	}
}

// start starts a server in the root filesystem; it ends with the test.
func start(t *testing.T, root string, major int, settings []string) *Server {
	t.Helper()
	s := place(t, root, major)
	s.initialize(t)
	s.configure(t, settings)
	s.run(t)
	return s
}

// place makes the directory of a server.
func place(t *testing.T, root string, major int) *Server {
	t.Helper()
	directory, err := os.MkdirTemp(filepath.Join(root, "tmp"), "test-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	must(t, os.Chown(directory, user, user))
	makeNull(t, root, directory)
	return &Server{
		Directory: directory, Port: porttest.Reserve(t), Major: major, root: root, inside: "/tmp/" + filepath.Base(directory),
		binaries: fmt.Sprintf("/usr/lib/postgresql/%d/bin/", major), ended: make(chan struct{}),
	}
}

// makeNull makes /dev/null in the root filesystem, to which initdb writes. Other tests find it complete or not at all.
func makeNull(t *testing.T, root, directory string) {
	t.Helper()
	null := filepath.Join(root, "dev", "null")
	if _, err := os.Stat(null); err == nil {
		return
	}
	device := filepath.Join(directory, "null")
	must(t, syscall.Mknod(device, syscall.S_IFCHR|0o666, 1<<8|3))
	must(t, os.Chmod(device, 0o666))
	must(t, os.Rename(device, null))
}

// initialize makes the data directory. initdb takes a second of CPU time and its result is always the same, so the
// first result is kept beside the root filesystem and copied. Small WAL segments make the copy smaller.
func (s *Server) initialize(t *testing.T) {
	t.Helper()
	kept, data := s.root+"-initdb", filepath.Join(s.Directory, "data")
	if _, err := os.Stat(kept); err == nil {
		must(t, copyTree(kept, data))
		return
	}
	initdb := s.command("initdb", "-D", s.inside+"/data", "-U", "postgres", "-E", "UTF8", "--locale=C", "--wal-segsize=1", "-N")
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v: %s", err, out)
	}
	ours := kept + "-" + filepath.Base(s.Directory)
	defer func() { _ = os.RemoveAll(ours) }()
	must(t, copyTree(data, ours))
	if err := os.Rename(ours, kept); err != nil && !os.IsExist(err) { // another test was faster
		t.Fatal(err)
	}
}

// copyTree copies a directory with owners and modes.
func copyTree(from, to string) error {
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s to %s: %w: %s", from, to, err, out)
	}
	return nil
}

// configure writes CloudNativePG's rules (1.30: pkg/postgres/configuration.go), with this process's user instead of the
// pod's.
func (s *Server) configure(t *testing.T, settings []string) {
	t.Helper()
	write := func(name, content string) {
		path := filepath.Join(s.Directory, "data", name)
		must(t, os.WriteFile(path, []byte(content), 0o600))
		must(t, os.Chown(path, user, user))
	}
	write("pg_hba.conf", "local all cnpg_metrics_exporter peer map=cnpg_metrics_exporter\nlocal all postgres peer map=local\nlocal all all trust\nhost all all all scram-sha-256\nlocal replication all trust\n")
	write("pg_ident.conf", "local root postgres\ncnpg_metrics_exporter root cnpg_metrics_exporter\n")
	write("postgresql.auto.conf", fmt.Sprintf("port=%d\nlisten_addresses='127.0.0.1'\nunix_socket_directories='%s'\nfsync=off\ndynamic_shared_memory_type=mmap\nmax_connections=20\nwal_level=logical\n%s\n", s.Port, s.inside, strings.Join(settings, "\n")))
}

func (s *Server) run(t *testing.T) {
	t.Helper()
	s.process = s.command("postgres", "-D", s.inside+"/data")
	s.process.Stderr = &s.log
	s.process.SysProcAttr.Pdeathsig = syscall.SIGQUIT // a test that is killed leaves no server
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the server ends with the thread that started it
		started <- s.process.Start()
		_ = s.process.Wait()
		close(s.ended)
	}()
	must(t, <-started)
	t.Cleanup(func() {
		_ = s.process.Process.Signal(syscall.SIGCONT)
		_ = s.process.Process.Signal(syscall.SIGQUIT) // an immediate shutdown
		<-s.ended
		if t.Failed() {
			t.Logf("PostgreSQL said:\n%s", s.log.String())
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		conn, err := s.connect(ctx, "postgres", "postgres", ours)
		if err == nil {
			_ = conn.Close(ctx)
			return
		}
		select {
		case <-s.ended:
			t.Fatal("PostgreSQL has ended")
		case <-ctx.Done():
			t.Fatalf("PostgreSQL does not answer: %v", err)
		case <-time.After(pause):
		}
	}
}

func (s *Server) command(program string, arguments ...string) *exec.Cmd {
	command := exec.Command(s.binaries+program, arguments...)
	command.Dir = "/"
	command.Env = []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8"}
	command.SysProcAttr = &syscall.SysProcAttr{
		Chroot: s.root, Credential: &syscall.Credential{Uid: user, Gid: user}, Setpgid: true,
	}
	return command
}

// Signal sends a signal to the postmaster only, like pg_ctl.
func (s *Server) Signal(signal syscall.Signal) error { return s.process.Process.Signal(signal) }

// Freeze stops every process of the server.
func (s *Server) Freeze() error { return s.signalAll(syscall.SIGSTOP) }

// Thaw continues a frozen server.
func (s *Server) Thaw() error { return s.signalAll(syscall.SIGCONT) }

// signalAll signals the postmaster and then its children: each backend has its own process group.
func (s *Server) signalAll(signal syscall.Signal) error {
	if err := s.Signal(signal); err != nil {
		return fmt.Errorf("signal the server: %w", err)
	}
	pid := s.process.Process.Pid
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return fmt.Errorf("list the server's processes: %w", err)
	}
	for _, field := range strings.Fields(string(children)) {
		child, err := strconv.Atoi(field)
		if err != nil {
			return fmt.Errorf("list the server's processes: %w", err)
		}
		_ = syscall.Kill(child, signal) // it may just have ended
	}
	return nil
}

// Log returns the server's log so far.
func (s *Server) Log() string { return s.log.String() }

// AddRule inserts a rule before the others in pg_hba.conf.
func (s *Server) AddRule(t *testing.T, rule string) {
	t.Helper()
	const reloaded = "reloading configuration files"
	before := strings.Count(s.Log(), reloaded)
	path := filepath.Join(s.Directory, "data", "pg_hba.conf")
	rules, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, append([]byte(rule+"\n"), rules...), 0o600))
	s.Execute(t, "select pg_reload_conf()")
	// The postmaster reloads asynchronously and logs a line.
	for strings.Count(s.Log(), reloaded) == before {
		time.Sleep(pause)
	}
}

// EnableTLS gives the server a certificate, with a key as long as CloudNativePG's.
func (s *Server) EnableTLS(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	for i := range 30 {
		template.DNSNames = append(template.DNSNames, fmt.Sprintf("cluster-example-%d.namespace.svc.cluster.local", i))
	}
	certificate, err := x509.CreateCertificate(cryptorand.Reader, template, template, key.Public(), key)
	must(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	for name, block := range map[string]*pem.Block{
		"server.crt": {Type: "CERTIFICATE", Bytes: certificate}, "server.key": {Type: "PRIVATE KEY", Bytes: secret},
	} {
		path := filepath.Join(s.Directory, "data", name)
		must(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
		must(t, os.Chown(path, user, user))
	}
	s.Execute(t, "alter system set ssl = on", "select pg_reload_conf()")
	for !strings.Contains(s.Log(), `parameter "ssl" changed to "on"`) {
		time.Sleep(pause)
	}
}

// Stop stops the server and its sessions with a fast shutdown.
func (s *Server) Stop(t *testing.T) {
	t.Helper()
	must(t, s.Signal(syscall.SIGINT)) // a fast shutdown
	<-s.ended
}

// Start starts a stopped server.
func (s *Server) Start(t *testing.T) {
	t.Helper()
	s.ended = make(chan struct{})
	s.run(t)
}

// Ended returns a channel that is closed when the server has stopped.
func (s *Server) Ended() <-chan struct{} { return s.ended }

func (s *Server) connect(ctx context.Context, role, database string, settings ...string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig("sslmode=disable " + strings.Join(settings, " "))
	if err != nil {
		return nil, fmt.Errorf("read the settings: %w", err)
	}
	if !strings.HasPrefix(config.Host, "127.") {
		config.Host = s.Directory
	}
	config.Port, config.User, config.Database, config.Fallbacks = s.Port, role, database, nil
	return pgx.ConnectConfig(ctx, config)
}

// Login opens a session over the socket, which ends with the test, or returns the server's refusal.
func (s *Server) Login(t *testing.T, role, database string, settings ...string) (*pgx.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := s.connect(ctx, role, database, settings...)
	if err == nil {
		t.Cleanup(func() { _ = conn.PgConn().Conn().Close() })
	}
	return conn, err
}

// Connect opens a session over the socket, which ends with the test.
func (s *Server) Connect(t *testing.T, role, database string, settings ...string) *pgx.Conn {
	t.Helper()
	conn, err := s.Login(t, role, database, settings...)
	must(t, err)
	return conn
}

// Execute runs statements as the superuser.
func (s *Server) Execute(t *testing.T, statements ...string) {
	t.Helper()
	conn := s.Connect(t, "postgres", "postgres", ours)
	for statement := range slices.Values(statements) {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	must(t, conn.Close(t.Context()))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
