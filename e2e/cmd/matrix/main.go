// Command matrix runs end-to-end tests on one cluster after another, each of other versions, and writes a table of what became
// of them. MATRIX chooses the combinations.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cnpg-i/scale-to-zero/e2e/cluster"
	"github.com/cnpg-i/scale-to-zero/e2e/matrix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	flags := flag.NewFlagSet("matrix", flag.ContinueOnError)
	list := flags.String("combinations", "", "OPERATOR/KUBERNETES/POSTGRESQL ..., instead of the usual ones")
	directory := flags.String("directory", "../build/matrix", "where table and logs are written")
	tests := flags.String("run", ".", "which tests are run, as go test has it")
	if err := flags.Parse(arguments); err != nil {
		return fmt.Errorf("read the flags: %w", err)
	}
	combinations, err := matrix.Parse(*list)
	if err != nil {
		return err
	}
	if len(combinations) == 0 {
		combinations = matrix.Default
	}
	if err := os.MkdirAll(*directory, 0o755); err != nil {
		return fmt.Errorf("make the directory of the results: %w", err)
	}
	var results []matrix.Result
	var problems []error
	for _, versions := range combinations {
		result := try(ctx, versions, *tests, *directory)
		results = append(results, result)
		if result.Err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", versions, result.Err))
		}
		// After every cluster: the next one may never end.
		if err := os.WriteFile(filepath.Join(*directory, "table.md"), []byte(matrix.Table(results)), 0o600); err != nil {
			return fmt.Errorf("write the table: %w", err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	fmt.Print(matrix.Table(results))
	return errors.Join(problems...)
}

// try runs the tests on a cluster that is made for them.
func try(ctx context.Context, versions cluster.Versions, tests, directory string) (result matrix.Result) {
	result.Versions = versions
	begun := time.Now()
	defer func() { result.Took = time.Since(begun) }()
	fmt.Fprintf(os.Stderr, "%s %s\n", begun.Format(time.TimeOnly), versions)
	name := strings.Join([]string{versions.Operator, versions.Kubernetes, versions.Postgres}, "-") + ".log"
	log, err := os.Create(filepath.Join(directory, name))
	if err != nil {
		result.Err = fmt.Errorf("make the log: %w", err)
		return result
	}
	defer func() { _ = log.Close() }()
	const run = `go -C e2e test -exec "$INSIDE" -count=1 -timeout 60m -parallel 5 -json -run "$0" ./tests/...`
	command := exec.CommandContext(ctx, "./on-cluster.sh", "sh", "-c", run, tests)
	// The script takes the cluster down whenever it ends, which an interrupt lets it do.
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.Stderr = log
	command.Env = append(os.Environ(), "REQUIRE_CLUSTER=1", "KUBECONFIG=", fmt.Sprintf("CLUSTERFLAGS=-operator %s -kubernetes %s -postgres %s",
		versions.Operator, versions.Kubernetes, versions.Postgres))
	output, err := command.StdoutPipe()
	if err != nil {
		result.Err = fmt.Errorf("follow the tests: %w", err)
		return result
	}
	if err := command.Start(); err != nil {
		result.Err = fmt.Errorf("start the tests: %w", err)
		return result
	}
	if err := errors.Join(result.Read(output, log), command.Wait()); err != nil {
		result.Err = fmt.Errorf("run the tests (%s): %w", name, err)
	}
	return result
}
