package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/cloudnative-pg/cnpg-i/pkg/identity"
	"google.golang.org/grpc"
)

// bystander answers calls like the plugin, and does nothing else.
type bystander struct {
	identity.UnimplementedIdentityServer
}

func (bystander) Probe(context.Context, *identity.ProbeRequest) (*identity.ProbeResponse, error) {
	return &identity.ProbeResponse{Ready: true}, nil
}

// standBy is the bystander's process.
func standBy(ctx context.Context, socket string) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket of an earlier run: %w", err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", socket, err)
	}
	server := grpc.NewServer()
	identity.RegisterIdentityServer(server, bystander{})
	defer context.AfterFunc(ctx, server.Stop)()
	return server.Serve(listener)
}

func (f *fleet) bystanderSocket() string { return filepath.Join(f.folder, "bystander") }

// startBystander starts the process; the function returned ends it.
func (f *fleet) startBystander(ctx context.Context) (func(), error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	command := exec.CommandContext(ctx, self, "-bystander", f.bystanderSocket())
	command.Stderr, command.SysProcAttr = os.Stderr, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start the bystander: %w", err)
	}
	return func() { cancel(); _ = command.Wait() }, nil
}
