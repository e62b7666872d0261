// Command kubectl-scale_to_zero is what kubectl runs for `kubectl scale_to_zero`. It builds for every platform of
// kubectl.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // the time zones for keep-awake windows, which Windows lacks

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cnpg-i/scale-to-zero/plugin/command"
)

// version is set by the linker.
var version = "development"

func main() {
	log.SetLogger(logr.Discard()) // of controller-runtime's client, whose errors are returned and printed once
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := command.Run(ctx, os.Args[1:], command.Streams{Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv}, version)
	stop()
	os.Exit(code)
}
