// Command supervisor is the container's first process: it runs the sidecar's worker and restarts it in place. A container that
// dies makes its pod not ready and takes the cluster's read-write Service down; a worker that dies does not.
//
// It is a program of its own, of as few packages as it needs, since every PostgreSQL pod pays for it.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/trim"
)

const (
	// worker is the program that the image holds beside this one.
	worker = "/sidecar"
	// limitVariable is contract.EnvMemoryLimit: that package would bring more than the rest of this program needs.
	limitVariable = "MEMORY_LIMIT"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var environment []string
	if limit := MemoryLimit(os.Getenv(limitVariable)); limit != "" {
		environment = append(environment, "GOMEMLIMIT="+limit)
	}
	logger := slog.New(slog.NewJSONHandler(os.Stdout, nil)).With("part", "supervisor")
	time.AfterFunc(settled, func() { // from now on it waits
		if err := trim.Program(); err != nil {
			logger.Warn("the program stays in memory as it is", "error", err.Error())
		}
	})
	(&Supervisor{Command: []string{worker, "worker"}, Environment: environment, Output: os.Stdout, Logger: logger}).Run(ctx)
}
