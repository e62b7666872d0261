package grpcserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cloudnative-pg/cnpg-i/pkg/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	provision "github.com/cnpg-i/scale-to-zero/plugin/certificates"
)

// slow answers Probe once it is allowed to, and panics in the other call.
type slow struct {
	identity.UnimplementedIdentityServer
	began, finish chan struct{}
}

func (s *slow) Probe(context.Context, *identity.ProbeRequest) (*identity.ProbeResponse, error) {
	if s.began != nil {
		close(s.began)
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

// secrets makes a pair of Secrets and writes them where the pod would have them.
func secrets(t *testing.T, directory string) (Files, *tls.Config) {
	t.Helper()
	client := fake.NewClientset()
	names := provision.Names{Namespace: "cnpg-system", Service: "scale-to-zero", ServerSecret: "server", ClientSecret: "client"}
	if _, err := provision.Ensure(t.Context(), client, names, time.Now()); err != nil {
		t.Fatal(err)
	}
	data := map[string]map[string][]byte{}
	for _, name := range []string{"server", "client"} {
		secret, err := client.CoreV1().Secrets("cnpg-system").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		data[name] = secret.Data
	}
	files := Files{filepath.Join(directory, "crt"), filepath.Join(directory, "key"), filepath.Join(directory, "client")}
	for file, content := range map[string][]byte{
		files.ServerCert: data["server"][corev1.TLSCertKey], files.ServerKey: data["server"][corev1.TLSPrivateKeyKey],
		files.ClientCert: data["client"][corev1.TLSCertKey],
	} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pair, err := tls.X509KeyPair(data["client"][corev1.TLSCertKey], data["client"][corev1.TLSPrivateKeyKey])
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(data["server"][corev1.TLSCertKey])
	return files, &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: "scale-to-zero", Certificates: []tls.Certificate{pair}}
}

func probe(t *testing.T, target string, credential credentials.TransportCredentials) error {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(credential))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = identity.NewIdentityClient(conn).Probe(ctx, &identity.ProbeRequest{}, grpc.WaitForReady(true))
	return err
}

func TestMutualTLSAndRotation(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	files, client := secrets(t, directory)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serverOf(&slow{}).ServeTCP(ctx, address, files) }()
	if err := probe(t, address, credentials.NewTLS(client)); err != nil {
		t.Fatalf("with the operator's certificate: %v", err)
	}
	stranger := client.Clone()
	stranger.Certificates = nil
	if probe(t, address, credentials.NewTLS(stranger)) == nil {
		t.Error("a client without a certificate was served")
	}

	if err := os.WriteFile(files.ServerKey, []byte("half-written"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := probe(t, address, credentials.NewTLS(client)); err != nil {
		t.Errorf("while the certificates are being replaced: %v", err)
	}
	_, renewed := secrets(t, directory)
	if err := probe(t, address, credentials.NewTLS(renewed)); err != nil {
		t.Errorf("with the renewed certificates: %v", err)
	}
	if probe(t, address, credentials.NewTLS(client)) == nil {
		t.Error("the replaced certificates are still taken")
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the end: %v", err)
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
