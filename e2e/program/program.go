// Package program has what the commands of this module have in common.
package program

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Run runs a command with a context that SIGINT and SIGTERM end. A command that fails says why, and exits with 1.
func Run(name string, run func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}
