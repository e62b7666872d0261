package cnpgi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/cnpg-i/scale-to-zero/sidecar/httpserver"
)

// gracefulStop bounds the wait for running calls. It comes last in the pod's termination grace period, which the
// manifests sum up.
const gracefulStop = 25 * time.Second

// renewLeft is the maximum age of connections that begin after the replica has begun to leave: a late kube-proxy may
// have routed the operator back here although there is another replica.
const renewLeft = time.Minute

const (
	// handshakeTimeout bounds the handshake of a connection that is not authenticated yet.
	handshakeTimeout = 5 * time.Second
	// maximumStrangers limits the connections that are not authenticated yet. At the limit, the source address with the
	// most loses its oldest. The operator's own connections are not limited.
	maximumStrangers = 64
)

// Server serves until it is stopped.
type Server struct {
	// Register registers the services with a server. It is called for each of them: two over TCP if Leaving is set, and
	// one on the socket.
	Register func(grpc.ServiceRegistrar)
	// Interceptors wrap every call, the first outermost. They see a panic in the call as an error.
	Interceptors []grpc.UnaryServerInterceptor
	// Leaving is closed when this replica routes no new clients to itself and only finishes its sessions, which may
	// take a day. The server then asks the operator to reconnect over TCP, which routes it to another replica with the
	// current settings. If there is none, this replica serves it again. nil: never.
	Leaving <-chan struct{}
	// Logger logs errors.
	Logger *slog.Logger
}

// ServeTCP serves with mutual TLS until the context ends, then finishes running calls.
func (s *Server) ServeTCP(ctx context.Context, address string, files CertificateFiles) error {
	certificates, err := newCertificates(files, s.Logger)
	if err != nil {
		return err
	}
	staying, leaving, err := listenTwice(ctx, address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	defer func() { _ = leaving.Close() }()
	transport := mutual{credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: certificates.config})}
	options := []grpc.ServerOption{grpc.Creds(transport), grpc.ConnectionTimeout(handshakeTimeout)}
	group, ctx := errgroup.WithContext(ctx)
	untilLeaving, leave := context.WithCancel(ctx)
	group.Go(func() error {
		return s.serve(untilLeaving, httpserver.NewListener(staying, maximumStrangers, nil), options...)
	})
	group.Go(func() error {
		defer leave()
		select {
		case <-ctx.Done():
			return nil
		case <-s.Leaving:
		}
		leave() // asks the peers of every connection to connect again
		renewed := grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: renewLeft})
		return s.serve(ctx, httpserver.NewListener(leaving, maximumStrangers, nil), append(options, renewed)...)
	})
	return group.Wait()
}

// listenTwice returns two listeners of one socket, because a gRPC server closes its own when it stops. A connection is
// accepted by whichever accepts.
func listenTwice(ctx context.Context, address string) (one, other net.Listener, err error) {
	var config net.ListenConfig
	if one, err = config.Listen(ctx, "tcp", address); err != nil {
		return nil, nil, err
	}
	if socket, ok := one.(*net.TCPListener); ok {
		var file *os.File
		if file, err = socket.File(); err == nil {
			other, err = net.FileListener(file)
			_ = file.Close()
		}
	}
	return one, other, err
}

// ServeSocket serves on a Unix socket until the context ends, then finishes running calls.
func (s *Server) ServeSocket(ctx context.Context, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket of an earlier process: %w", err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	return s.serve(ctx, listener)
}

func (s *Server) serve(ctx context.Context, listener net.Listener, options ...grpc.ServerOption) error {
	server := grpc.NewServer(append(options, grpc.ChainUnaryInterceptor(append(slices.Clone(s.Interceptors), s.recover)...))...)
	s.Register(server)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		timer := time.AfterFunc(gracefulStop, server.Stop)
		defer timer.Stop()
		server.GracefulStop()
	})
	err := server.Serve(listener)
	if !stop() {
		<-stopped // Serve returns before the last calls have finished
	}
	if err != nil {
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	}
	return nil
}

// recover keeps a panic in one call from ending the process, on which every cluster's reconciliation depends.
func (s *Server) recover(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (answer any, err error) {
	defer func() {
		if caught := recover(); caught != nil {
			s.Logger.Error("a call panicked", "method", info.FullMethod, "panic", fmt.Sprint(caught))
			answer, err = nil, status.Error(codes.Internal, "the plugin failed")
		}
	}()
	return handler(ctx, request)
}
