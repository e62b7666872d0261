// Command supervisor is the container's first process: it runs the sidecar's worker and restarts it in place. A
// container that dies makes its pod not ready and takes the cluster's read-write Service down; a worker that dies does
// not.
//
// In a pod that may doze it also owns the readiness port, which must not close because a worker dies.
//
// It is a separate program with as few packages as possible, because every PostgreSQL pod pays for its memory: as a
// command of the worker's program it had 2.3 MiB of anonymous memory at rest instead of 1.1.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/process"
)

const (
	// worker is the other program in the image.
	worker = "/sidecar"
	// limitVariable and portVariable are contract.EnvMemoryLimit and contract.EnvReadinessPort, and readinessSocket is
	// in contract.SidecarDirectory: copied because that package would add more than the rest of this program needs.
	limitVariable   = "MEMORY_LIMIT"
	portVariable    = "READINESS_PORT"
	readinessSocket = "/scale-to-zero/readiness.sock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var environment []string
	if limit := memoryLimit(os.Getenv(limitVariable)); limit != "" {
		environment = append(environment, "GOMEMLIMIT="+limit)
	}
	logger := slog.New(slog.NewJSONHandler(os.Stdout, nil)).With("part", "supervisor")
	time.AfterFunc(settled, func() { // from then on it only waits
		if err := process.TrimProgram(); err != nil {
			logger.Warn("cannot release the pages of the program", "error", err.Error())
		}
	})
	var readinessPort sync.WaitGroup
	if number := os.Getenv(portVariable); number != "" {
		readinessPort.Go(func() { process.ServeReadiness(ctx, ":"+number, readinessSocket, logger) })
	}
	(&supervisor{command: []string{worker, "worker"}, environment: environment, output: os.Stdout, logger: logger}).run(ctx)
	readinessPort.Wait()
}
