// Command fleet measures the wake gateway with a fleet of sleeping clusters: how soon all of them can be woken after the
// plugin has started, what it needs at rest, and how soon 500 of them are woken at once.
//
// It needs no cluster: it runs a real etcd and API server, and the real plugin as a process with the rights and the
// environment that its Deployment gives it. The operator, kubelet and kube-proxy are missing: their objects are made as they
// make them. All of it runs in a network of its own, so that it meets nobody's ports; that needs root or user namespaces.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cnpg-i/scale-to-zero/e2e/cluster"
	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// options are the choices of a run.
type options struct {
	clusters, namespaces, wakes int
	rest                        time.Duration
	logs, only                  string
	programs                    programs
	inside                      bool
}

func main() {
	var o options
	flag.IntVar(&o.clusters, "clusters", 10_000, "how many clusters sleep")
	flag.IntVar(&o.namespaces, "namespaces", 300, "in how many namespaces they are")
	flag.IntVar(&o.wakes, "wakes", 500, "how many are woken at once")
	flag.DurationVar(&o.rest, "rest", time.Minute, "how long the plugin is watched at rest")
	flag.StringVar(&o.logs, "logs", "", "folder to keep the logs in; otherwise they are removed")
	flag.StringVar(&o.programs.kubernetes, "kubernetes", "", "program that is etcd and kube-apiserver; made if empty")
	flag.StringVar(&o.programs.plugin, "plugin", "", "the plugin; made from this tree if empty")
	flag.StringVar(&o.programs.definitions, "definitions", "", "folder of the operator's CRDs; its module's if empty")
	flag.StringVar(&o.only, "only", "", "measure only these, separated by commas: write, lives, attack; or windows")
	standBySocket := flag.String("bystander", "", "be the process that is called beside the plugin, on this socket")
	attack := flag.Bool("attackers", false, "be the process that attacks the plugin's ports, which are read from the standard input")
	flag.BoolVar(&o.inside, "inside", false, "the network is this command's own already")
	flag.Parse()
	if flag.NArg() != 0 { // what follows would be no flag, -inside among it: this command would run itself again and again
		fmt.Fprintf(os.Stderr, "fleet: argument %q is invalid: all options are flags\n", flag.Arg(0))
		os.Exit(2)
	}
	log.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	work := func(ctx context.Context) error { return run(ctx, o) }
	switch {
	case *standBySocket != "":
		work = func(ctx context.Context) error { return standBy(ctx, *standBySocket) }
	case *attack:
		work = attackAll
	}
	if err := work(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	progress := cluster.NewProgress(os.Stderr)
	if !o.inside {
		fmt.Println(scenario.Conditions(ctx))
		temporary, err := os.MkdirTemp("", "fleet-")
		if err != nil {
			return fmt.Errorf("make a temporary directory: %w", err)
		}
		defer func() { _ = os.RemoveAll(temporary) }()
		if err := o.programs.prepare(ctx, progress, temporary); err != nil {
			return err
		}
		if o.logs == "" {
			o.logs = temporary
		}
		if err := os.MkdirAll(o.logs, 0o755); err != nil {
			return fmt.Errorf("make the folder of -logs: %w", err)
		}
		return enclose(ctx, o)
	}
	if err := raiseLoopback(ctx); err != nil {
		return err
	}
	return measure(ctx, progress, o)
}

// measure makes the fleet and takes every figure.
func measure(ctx context.Context, progress *cluster.Progress, o options) (err error) {
	if fit := fitting(); o.clusters > fit {
		progress.Say("the limit of %d file descriptors leaves ports for %d clusters, not %d", descriptors(), fit, o.clusters)
		o.clusters = fit
	}
	o.wakes = min(o.wakes, o.clusters)
	server, err := startServer(o.programs, o.logs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	f := &fleet{options: o, server: server, progress: progress}
	if err := f.populate(ctx); err != nil {
		return err
	}
	fmt.Printf("| %d sleeping clusters, %d namespaces | |\n|---|---|\n", o.clusters, o.namespaces)
	for _, part := range []struct {
		name    string
		measure func(context.Context) error
	}{
		{"write", f.writeLimit}, {"lives", f.lives}, {"attack", f.attack}, {"windows", f.windows},
	} {
		all := o.only == "" && part.name != "windows" // which take eight minutes
		if !all && !slices.Contains(strings.Split(o.only, ","), part.name) {
			continue
		}
		if err := part.measure(ctx); err != nil {
			return err
		}
	}
	return nil
}

// row prints a figure.
func row(what, format string, values ...any) {
	fmt.Printf("| %s | %s |\n", what, fmt.Sprintf(format, values...))
}
