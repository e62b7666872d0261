// Command sidecar runs next to every PostgreSQL instance of a cluster that lists the plugin: `sidecar worker` is the
// worker that the supervisor starts, `sidecar drain` asks it to close its database sessions, `sidecar explain` shows
// why the cluster is awake, and `sidecar version` prints the version.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // the time zones of keep-awake windows; the image has none

	"github.com/cnpg-i/scale-to-zero/sidecar/server"
)

// version is set by the linker.
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
		_, _ = fmt.Fprintf(stderr, "sidecar: there is no command %q; there are worker, drain, explain and version\n", command)
		return 2
	}
}
