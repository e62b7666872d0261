// Command sidecar runs beside every PostgreSQL instance of a cluster that lists the plugin. Without arguments it is the
// supervisor of the worker; `sidecar worker` is the worker, `sidecar drain` asks it to close its database sessions, `sidecar
// explain` tells why the cluster is awake, and `sidecar version` prints the version.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // the time zones of keep-awake windows; the image has none

	"github.com/cnpg-i/scale-to-zero/sidecar/server"
	"github.com/cnpg-i/scale-to-zero/sidecar/supervisor"
)

// version is set when the program is linked.
var version = "development"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(arguments []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	command := ""
	if len(arguments) != 0 {
		command = arguments[0]
	}
	switch {
	case command == "explain":
		return explainCommand(ctx, arguments[1:], os.Getenv, stdout, stderr)
	case len(arguments) > 1:
		_, _ = fmt.Fprintf(stderr, "sidecar: %q takes no arguments\n", command)
		return 2
	case command == "":
		supervise(ctx, stdout)
		return 0
	case command == "worker":
		return work(ctx, os.Getenv, stdout)
	case command == "drain":
		if err := server.Drain(ctx, drainSocket); err != nil {
			_, _ = fmt.Fprintln(stderr, "sidecar:", err)
			return 1
		}
		return 0
	case command == "version":
		_, _ = fmt.Fprintln(stdout, version)
		return 0
	default:
		_, _ = fmt.Fprintf(stderr, "sidecar: there is no command %q; there are worker, drain, explain and version, and none for the supervisor\n", command)
		return 2
	}
}

func supervise(ctx context.Context, output io.Writer) {
	var environment []string
	if limit := supervisor.MemoryLimit(os.Getenv("MEMORY_LIMIT")); limit != "" {
		environment = append(environment, "GOMEMLIMIT="+limit)
	}
	(&supervisor.Supervisor{
		Command: []string{"/proc/self/exe", "worker"}, Environment: environment, Output: output,
		Logger: slog.New(slog.NewJSONHandler(output, nil)).With("part", "supervisor"),
	}).Run(ctx)
}
