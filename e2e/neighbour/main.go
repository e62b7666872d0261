// Command neighbour is a second plugin for tests, which archives WAL and takes backups like the plugins that users run beside ours.
// `neighbour operator` serves the operator and injects the sidecar as a restartable init container; `neighbour instance` is that sidecar,
// and serves the instance manager over a Unix socket in the volume "plugins"; `neighbour probe` checks that it serves. Its store is a
// directory beside the data, so that the store outlives the pod.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/cloudnative-pg/cnpg-i/pkg/backup"
	"github.com/cloudnative-pg/cnpg-i/pkg/identity"
	"github.com/cloudnative-pg/cnpg-i/pkg/lifecycle"
	"github.com/cloudnative-pg/cnpg-i/pkg/wal"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cnpg-i/scale-to-zero/e2e/program"
)

// version is set when the program is linked.
var version = "development"

// socketDirectory is where the instance manager looks for sockets.
const socketDirectory = "/plugins"

// settings are the flags of all parts.
type settings struct {
	// name is the one by which a Cluster lists the plugin, and the socket's; image is that of this program.
	name, image string
	// replaces has the sidecar made anew when a pod is created, unprobed leaves its startup probe out.
	replaces, unprobed bool
	// address, certificate, key and peer are how the operator is served: the files of both sides' certificates.
	address, certificate, key, peer string
}

func main() {
	program.Run("neighbour", func(ctx context.Context) error { return run(ctx, os.Args[1:]) })
}

func run(ctx context.Context, arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("the first argument must be operator, instance or probe")
	}
	var s settings
	flags := flag.NewFlagSet(arguments[0], flag.ContinueOnError)
	flags.StringVar(&s.name, "name", "", "name of the plugin")
	flags.StringVar(&s.image, "image", "", "image of the sidecar")
	flags.BoolVar(&s.replaces, "replaces", false, "make the sidecar anew when a pod is created")
	flags.BoolVar(&s.unprobed, "unprobed", false, "give the sidecar no startup probe")
	flags.StringVar(&s.address, "address", ":9090", "where the operator is served")
	flags.StringVar(&s.certificate, "server-cert", "/server/tls.crt", "certificate of the server")
	flags.StringVar(&s.key, "server-key", "/server/tls.key", "its key")
	flags.StringVar(&s.peer, "client-cert", "/client/tls.crt", "certificate of the operator")
	if err := flags.Parse(arguments[1:]); err != nil {
		return fmt.Errorf("read the flags: %w", err)
	}
	switch arguments[0] {
	case "operator":
		return serveOperator(ctx, s)
	case "instance":
		return serveInstance(ctx, s)
	case "probe":
		return probe(ctx, s)
	default:
		return fmt.Errorf("there is no part %q", arguments[0])
	}
}

func (s settings) socket() string { return filepath.Join(socketDirectory, s.name) }

func serveOperator(ctx context.Context, s settings) error {
	pair, err := tls.LoadX509KeyPair(s.certificate, s.key)
	if err != nil {
		return fmt.Errorf("read the certificate: %w", err)
	}
	peer, err := os.ReadFile(s.peer)
	if err != nil {
		return fmt.Errorf("read the operator's certificate: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(peer) {
		return fmt.Errorf("there is no certificate in %s", s.peer)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
	})))
	identity.RegisterIdentityServer(server, &itself{name: s.name, offers: []identity.PluginCapability_Service_Type{
		identity.PluginCapability_Service_TYPE_LIFECYCLE_SERVICE,
	}})
	lifecycle.RegisterOperatorLifecycleServer(server, &injector{name: s.name, image: s.image, replaces: s.replaces, unprobed: s.unprobed})
	return serve(ctx, server, "tcp", s.address)
}

func serveInstance(ctx context.Context, s settings) error {
	data := os.Getenv("PGDATA")
	if data == "" {
		return errors.New("PGDATA is not set")
	}
	store := store(filepath.Join(filepath.Dir(data), storeName))
	if err := os.MkdirAll(string(store), 0o700); err != nil {
		return fmt.Errorf("make the store: %w", err)
	}
	if err := os.Remove(s.socket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket of an earlier process: %w", err)
	}
	server := grpc.NewServer()
	identity.RegisterIdentityServer(server, &itself{name: s.name, offers: []identity.PluginCapability_Service_Type{
		identity.PluginCapability_Service_TYPE_WAL_SERVICE, identity.PluginCapability_Service_TYPE_BACKUP_SERVICE,
	}})
	wal.RegisterWALServer(server, &archiver{store: store})
	backup.RegisterBackupServer(server, &backuper{store: store})
	return serve(ctx, server, "unix", s.socket())
}

// serve serves until the context ends; then calls in flight are finished.
func serve(ctx context.Context, server *grpc.Server, network, address string) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, network, address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	stopped := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(stopped)
		server.GracefulStop()
	})
	if err := server.Serve(listener); err != nil {
		return fmt.Errorf("serve on %s: %w", address, err)
	}
	<-stopped
	return nil
}

// probe asks the sidecar of this pod.
func probe(ctx context.Context, s settings) error {
	connection, err := grpc.NewClient("unix://"+s.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("reach the sidecar: %w", err)
	}
	defer func() { _ = connection.Close() }()
	if _, err := identity.NewIdentityClient(connection).Probe(ctx, &identity.ProbeRequest{}); err != nil {
		return fmt.Errorf("ask the sidecar: %w", err)
	}
	return nil
}
