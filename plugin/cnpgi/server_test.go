package cnpgi

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudnative-pg/cnpg-i/pkg/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/cnpg-i/scale-to-zero/internal/porttest"
)

// slow answers Probe once it is allowed to, and panics in the other call.
type slow struct {
	identity.UnimplementedIdentityServer
	began, finish chan struct{}
	once          sync.Once
}

func (s *slow) Probe(context.Context, *identity.ProbeRequest) (*identity.ProbeResponse, error) {
	if s.began != nil {
		s.once.Do(func() { close(s.began) })
		<-s.finish
	}
	return &identity.ProbeResponse{Ready: true}, nil
}

func (s *slow) GetPluginMetadata(context.Context, *identity.GetPluginMetadataRequest) (*identity.GetPluginMetadataResponse, error) {
	panic("a mistake of ours")
}

func serverOf(service *slow) *Server {
	return &Server{
		Logger:   slog.New(slog.DiscardHandler),
		Register: func(r grpc.ServiceRegistrar) { identity.RegisterIdentityServer(r, service) },
	}
}

// secrets creates a pair of Secrets and writes them where the pod mounts them.
func secrets(t *testing.T, directory string) (CertificateFiles, *tls.Config) {
	t.Helper()
	pair := renewed(t, fake.NewClientset(), time.Now())
	files := CertificateFiles{filepath.Join(directory, "crt"), filepath.Join(directory, "key"), filepath.Join(directory, "client")}
	pair.mount(t, files)
	return files, pair.operator(t)
}

// pair is the content of the two Secrets.
type pair struct{ server, client map[string][]byte }

// renewed returns the pair after a renewal check.
func renewed(t *testing.T, store kubernetes.Interface, now time.Time) pair {
	t.Helper()
	names := CertificateNames{Namespace: "cnpg-system", Service: "scale-to-zero", ServerSecret: "server", ClientSecret: "client"}
	if _, err := EnsureCertificates(t.Context(), store, names, now); err != nil {
		t.Fatal(err)
	}
	read := func(name string) map[string][]byte {
		secret, err := store.CoreV1().Secrets("cnpg-system").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return secret.Data
	}
	return pair{read("server"), read("client")}
}

// mount writes the files like the kubelet.
func (p pair) mount(t *testing.T, files CertificateFiles) {
	t.Helper()
	for file, content := range map[string][]byte{
		files.ServerCert: p.server[corev1.TLSCertKey], files.ServerKey: p.server[corev1.TLSPrivateKeyKey], files.ClientCert: p.client[corev1.TLSCertKey],
	} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Error(err)
		}
	}
}

// operator returns the operator's TLS configuration for the Secrets.
func (p pair) operator(t *testing.T) *tls.Config {
	t.Helper()
	own, err := tls.X509KeyPair(p.client[corev1.TLSCertKey], p.client[corev1.TLSPrivateKeyKey])
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(p.server[corev1.TLSCertKey])
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: "scale-to-zero", Certificates: []tls.Certificate{own}}
}

// patience bounds every wait; a passing test never reaches it.
const patience = time.Minute

// probe calls the server, and waits until it serves unless the options say otherwise.
func probe(t *testing.T, target string, credential credentials.TransportCredentials, options ...grpc.CallOption) error {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(credential))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = identity.NewIdentityClient(conn).Probe(ctx, &identity.ProbeRequest{}, append([]grpc.CallOption{grpc.WaitForReady(true)}, options...)...)
	return err
}

func TestMutualTLSAndRotation(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	files, client := secrets(t, directory)
	address := porttest.Address(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serverOf(&slow{}).ServeTCP(ctx, address, files) }()
	if err := probe(t, address, credentials.NewTLS(client)); err != nil {
		t.Fatalf("with the operator's certificate: %v", err)
	}
	stranger := client.Clone()
	stranger.Certificates = nil
	if probe(t, address, credentials.NewTLS(stranger), grpc.WaitForReady(false)) == nil {
		t.Error("a client without a certificate was served")
	}
	older := client.Clone()
	older.MinVersion, older.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if conn, err := tls.Dial("tcp", address, older); err == nil || !strings.Contains(err.Error(), "protocol version") {
		if err == nil {
			_ = conn.Close()
		}
		t.Errorf("a client of TLS 1.2 was not refused for that: %v", err)
	}

	if err := os.WriteFile(files.ServerKey, []byte("half-written"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := probe(t, address, credentials.NewTLS(client)); err != nil {
		t.Errorf("while the certificates are being replaced: %v", err)
	}
	_, others := secrets(t, directory)
	if err := probe(t, address, credentials.NewTLS(others)); err != nil {
		t.Errorf("with certificates of other authorities: %v", err)
	}
	if probe(t, address, credentials.NewTLS(client), grpc.WaitForReady(false)) == nil {
		t.Error("the replaced certificates are still taken")
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the end: %v", err)
	}
}

// TestServeTCP_servesTheOperatorBesideStrangers opens more connections from strangers than are allowed, silent ones and ones
// with half a ClientHello, before the operator connects and while it is connected.
func TestServeTCP_servesTheOperatorBesideStrangers(t *testing.T) {
	t.Parallel()
	files, client := secrets(t, t.TempDir())
	address := porttest.Address(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serverOf(&slow{}).ServeTCP(ctx, address, files) }()
	kept, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(client)))
	if err != nil {
		t.Fatal(err)
	}
	call := func() error {
		_, err := identity.NewIdentityClient(kept).Probe(t.Context(), &identity.ProbeRequest{}, grpc.WaitForReady(true))
		return err
	}
	if err := call(); err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	for i := range 10 * maximumStrangers {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 3, byte(i%10+1))}}
		conn, err := dialer.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = conn.Write([]byte("\x16\x03\x01\x02\x00\x01")[:i%7])
	}
	if err := probe(t, address, credentials.NewTLS(client)); err != nil {
		t.Errorf("a new connection of the operator: %v", err)
	}
	if err := call(); err != nil {
		t.Errorf("the operator's connection of before: %v", err)
	}
	own := 10 * maximumStrangers // the test's ends
	if grew := openFiles(t) - before - own; grew > 2*maximumStrangers {
		t.Errorf("the server holds %d connections of strangers", grew)
	}
	_ = kept.Close()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the end: %v", err)
	}
}

// openFiles returns the process's number of file descriptors.
func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestCertificates_areReadWhenTheyHaveChanged expects a new configuration only if the contents of the files have
// changed.
func TestCertificates_areReadWhenTheyHaveChanged(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	files, _ := secrets(t, directory)
	read, err := newCertificates(files, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	config := func() *tls.Config {
		config, err := read.config(nil)
		if err != nil {
			t.Fatal(err)
		}
		return config
	}
	first := config()
	if config() != first {
		t.Error("they are read although nothing has changed")
	}
	if err := os.Remove(files.ClientCert); err != nil {
		t.Fatal(err)
	}
	if config() != first {
		t.Error("a part that is missing takes the last away")
	}
	secrets(t, directory)
	second := config()
	if second == first {
		t.Error("a change is passed over")
	}
	if config() != second {
		t.Error("they are read again although nothing has changed since")
	}
}

// The cause of a failed read may go away without a change of the files: the process may have run out of file
// descriptors. The test keeps the key's size and modification time, so that only its content shows the change.
func TestCertificates_areReadAgainWhenThatFailed(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	files, _ := secrets(t, directory)
	read, err := newCertificates(files, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	first := read.last
	secrets(t, directory)
	key, err := os.ReadFile(files.ServerKey)
	if err != nil {
		t.Fatal(err)
	}
	noon := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	write := func(content []byte) *tls.Config {
		if err := errors.Join(os.WriteFile(files.ServerKey, content, 0o600), os.Chtimes(files.ServerKey, noon, noon)); err != nil {
			t.Fatal(err)
		}
		config, err := read.config(nil)
		if err != nil {
			t.Fatal(err)
		}
		return config
	}
	if write(bytes.Repeat([]byte("x"), len(key))) != first {
		t.Error("a key that cannot be read takes the last away")
	}
	if write(key) == first {
		t.Error("they are not read again")
	}
}

// A renewal reaches the operator and the plugin's files at different times. Meanwhile no call fails, on existing or on new
// connections.
func TestARenewalDropsNoCall(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule          string
		operatorFirst bool
	}{{"the operator has the new certificates first", true}, {"the plugin has the new certificates first", false}} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			store, directory := fake.NewClientset(), t.TempDir()
			before := renewed(t, store, time.Now().Add(-61*24*time.Hour)) // still valid, and due for renewal
			files := CertificateFiles{filepath.Join(directory, "crt"), filepath.Join(directory, "key"), filepath.Join(directory, "client")}
			before.mount(t, files)
			address := porttest.Address(t)
			ctx, cancel := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- serverOf(&slow{}).ServeTCP(ctx, address, files) }()

			var operator atomic.Pointer[tls.Config]
			operator.Store(before.operator(t))
			connect := func() *grpc.ClientConn {
				conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(operator.Load())))
				if err != nil {
					panic(err) // the constructor does not dial, and accepts any target
				}
				return conn
			}
			call := func(conn *grpc.ClientConn, options ...grpc.CallOption) error {
				_, err := identity.NewIdentityClient(conn).Probe(t.Context(), &identity.ProbeRequest{}, options...)
				return err
			}
			kept := connect()
			if err := call(kept, grpc.WaitForReady(true)); err != nil {
				t.Fatal(err)
			}
			calling, stop := context.WithCancel(ctx)
			calls := make(chan error)
			var callers sync.WaitGroup
			for range 3 {
				callers.Go(func() {
					for calling.Err() == nil {
						err := call(kept)
						select {
						case calls <- err:
						case <-calling.Done():
						}
						conn := connect()
						err = call(conn)
						_ = conn.Close()
						select {
						case calls <- err:
						case <-calling.Done():
						}
					}
				})
			}
			total := 0
			during := func(rule string, change func()) {
				changed := make(chan struct{})
				go func() { defer close(changed); change() }()
				for left, waiting := 60, (<-chan struct{})(changed); left > 0; {
					select {
					case err := <-calls:
						total++
						if err != nil {
							t.Errorf("%s: %v", rule, err)
						}
						if waiting == nil {
							left--
						}
					case <-waiting:
						waiting = nil
					}
				}
			}
			during("before the renewal", func() {})
			after := renewed(t, store, time.Now())
			if bytes.Equal(after.server[corev1.TLSCertKey], before.server[corev1.TLSCertKey]) {
				t.Fatal("nothing was renewed")
			}
			next := after.operator(t)
			changes := []func(){func() { operator.Store(next) }, func() { after.mount(t, files) }}
			if !row.operatorFirst {
				slices.Reverse(changes)
			}
			during("when one side has the new certificates", changes[0])
			during("when both sides have them", changes[1])
			t.Logf("%d calls", total)
			stop()
			callers.Wait()
			_ = kept.Close()
			cancel()
			if err := <-served; err != nil {
				t.Errorf("the end: %v", err)
			}
		})
	}
}

func TestCallsInFlightFinishAndPanicsStayInTheirCall(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	service := &slow{began: make(chan struct{}), finish: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serverOf(service).ServeSocket(ctx, socket) }()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := identity.NewIdentityClient(conn)
	if _, err := client.GetPluginMetadata(t.Context(), &identity.GetPluginMetadataRequest{}, grpc.WaitForReady(true)); err == nil {
		t.Error("a panic was answered as success")
	}
	answered := make(chan error, 1)
	go func() { _, err := client.Probe(t.Context(), &identity.ProbeRequest{}); answered <- err }()
	<-service.began
	cancel()
	select {
	case err := <-done:
		t.Errorf("the server ended before its call: %v", err)
	default:
	}
	close(service.finish)
	if err := <-answered; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("the end: %v", err)
	}
}

// A replica may drain for a day. The operator keeps its connections, and would call it with its settings of before for as long.
func TestServeTCP_sendsTheOperatorAwayWhenItLeaves(t *testing.T) {
	t.Parallel()
	files, config := secrets(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	leaving, done := make(chan struct{}), make(chan error, 2)
	replica := func(service *slow, leaving <-chan struct{}) string {
		address, server := porttest.Address(t), serverOf(service)
		server.Leaving = leaving
		go func() { done <- server.ServeTCP(ctx, address, files) }()
		return address
	}
	service := &slow{began: make(chan struct{}), finish: make(chan struct{})}
	old, next := replica(service, leaving), replica(&slow{}, nil)
	if err := probe(t, next, credentials.NewTLS(config)); err != nil {
		t.Fatal(err)
	}

	var leads atomic.Pointer[string] // the Service
	leads.Store(&old)
	led := make(chan string, 10)
	operator, err := grpc.NewClient("passthrough:///scale-to-zero", grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var dialer net.Dialer
			replica := *leads.Load()
			led <- replica
			return dialer.DialContext(ctx, "tcp", replica)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = operator.Close() }()
	call := func(options ...grpc.CallOption) error {
		_, err := identity.NewIdentityClient(operator).Probe(t.Context(), &identity.ProbeRequest{}, options...)
		return err
	}
	answered := make(chan error, 1)
	go func() { answered <- call(grpc.WaitForReady(true)) }()
	<-service.began

	leads.Store(&next)
	close(leaving)
	limited, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	if !operator.WaitForStateChange(limited, connectivity.Ready) {
		t.Error("the operator is not asked to connect again")
	}
	if err := call(); err != nil {
		t.Errorf("the first call afterwards: %v", err)
	}
	close(service.finish)
	if err := <-answered; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	if err := probe(t, old, credentials.NewTLS(config)); err != nil {
		t.Errorf("an operator that has no other replica: %v", err)
	}
	cancel()
	for range 2 {
		if err := <-done; err != nil {
			t.Errorf("the end: %v", err)
		}
	}
	var dialed []string
	for len(led) != 0 {
		dialed = append(dialed, <-led)
	}
	if dialed = slices.Compact(dialed); !slices.Equal(dialed, []string{old, next}) { // again, if a replica did not listen yet
		t.Errorf("the operator connected to %s, want %s", dialed, []string{old, next})
	}
}
