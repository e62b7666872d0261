// Package grpcserver serves the operator: over TCP with certificates of both sides, and over a Unix socket in the operator's
// plugin directory.
package grpcserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// gracefulStop bounds the wait for calls in flight; it comes last in the pod's grace period, whose sum is in the manifests.
const gracefulStop = 25 * time.Second

// Files are the certificates, as files that may change.
type Files struct{ ServerCert, ServerKey, ClientCert string }

// Server serves until it is stopped.
type Server struct {
	// Register adds the services.
	Register func(grpc.ServiceRegistrar)
	// Logger tells what went wrong.
	Logger *slog.Logger
}

// ServeTCP serves with mutual TLS until the context ends; then calls in flight are finished.
func (s *Server) ServeTCP(ctx context.Context, address string, files Files) error {
	certificates, err := newCertificates(files, s.Logger)
	if err != nil {
		return err
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	return s.serve(ctx, listener, grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, GetConfigForClient: certificates.config,
	})))
}

// ServeSocket serves on a Unix socket until the context ends; then calls in flight are finished.
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
	server := grpc.NewServer(append(options, grpc.UnaryInterceptor(s.recover))...)
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
		<-stopped // Serve returns before the last calls have
	}
	if err != nil {
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	}
	return nil
}

// recover keeps a panic in one call from ending the process, which every cluster's reconciliation depends on.
func (s *Server) recover(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
	defer func() {
		if caught := recover(); caught != nil {
			s.Logger.Error("a call panicked", "method", info.FullMethod, "panic", fmt.Sprint(caught))
			answer, err = nil, status.Error(codes.Internal, "the plugin failed")
		}
	}()
	return handler(ctx, request)
}

// certificates reads the files anew for every handshake and keeps the last that were whole: while they are being replaced,
// certificate and key may not belong together.
type certificates struct {
	files  Files
	logger *slog.Logger
	mutex  sync.Mutex
	last   *tls.Config
}

func newCertificates(files Files, logger *slog.Logger) (*certificates, error) {
	config, err := load(files)
	if err != nil {
		return nil, err
	}
	return &certificates{files: files, logger: logger, last: config}, nil
}

func (c *certificates) config(*tls.ClientHelloInfo) (*tls.Config, error) {
	config, err := load(c.files)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if err != nil {
		c.logger.Warn("the certificates cannot be read; the last ones stay in use", "error", err.Error())
		return c.last, nil
	}
	c.last = config
	return config, nil
}

func load(files Files) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(files.ServerCert, files.ServerKey)
	if err != nil {
		return nil, fmt.Errorf("read the server's certificate: %w", err)
	}
	client, err := os.ReadFile(files.ClientCert)
	if err != nil {
		return nil, fmt.Errorf("read the client's certificate: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(client) {
		return nil, fmt.Errorf("read the client's certificate: %s holds none", files.ClientCert)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, NextProtos: []string{"h2"},
	}, nil
}
