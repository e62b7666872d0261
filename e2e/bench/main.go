// Command bench measures on a real cluster what the sidecar and the plugin cost: PostgreSQL's shutdown with the sidecar
// against without it, side by side, its own memory and processor time at rest, how quickly the plugin answers the operator,
// what the operator does about clusters that doze, what storms of sessions, and pgbench, cost, and how long a client waits that wakes a cluster, from hibernation or from a doze, alone and
// beside a backup plugin. What holds however often it is tried is a test of `make soak`. Machines are noisy: read the ratios. It uses the
// cluster that KUBECONFIG names; memory, processor time and the plugin's answers need the node to be this machine.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cnpg-i/scale-to-zero/e2e/program"
	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// toHealthy bounds every wait for a healthy cluster.
	toHealthy = 5 * time.Minute
	// never is a threshold, in minutes, that is not reached while measuring.
	never = "600"
)

func main() {
	var much amounts
	flag.IntVar(&much.runs, "runs", 5, "how often each shutdown, start and prewarmed sleep is measured, and a wake beside dozing clusters")
	flag.DurationVar(&much.rest, "rest", time.Minute, "how long the sidecar is watched at rest")
	flag.IntVar(&much.wakes, "wakes", 20, "how often the first query after hibernation is measured, and beside other plugins")
	flag.IntVar(&much.dozes, "dozes", 20, "how often the first query after a doze is measured")
	flag.IntVar(&much.dozers, "dozers", 5, "how many clusters doze off together, and are then asked one after the other")
	flag.IntVar(&much.resting, "resting", 40, "beside how many dozing clusters the operator is measured")
	flag.IntVar(&much.hibernations, "hibernations", 3, "how often the first query after hibernation is measured beside dozes: once a round")
	only := flag.String("only", "", "measure only these, separated by commas: shutdown, failover, hook, rest, quiet, storms, pgbench, awake, pooled, wakes, doze, operator, shared-buffers, prewarm, beside, together")
	flag.Parse()
	log.SetLogger(logr.Discard())
	program.Run("bench", func(ctx context.Context) error {
		return scenario.InNamespace(ctx, "bench", func(kube *scenario.Kubernetes, namespace string) error {
			return run(ctx, kube, namespace, much, *only)
		})
	})
}

// amounts say how much is measured.
type amounts struct {
	runs, wakes, dozes, dozers, resting, hibernations int

	rest time.Duration
}

func run(ctx context.Context, kube *scenario.Kubernetes, namespace string, much amounts, only string) error {
	with := kube.NewCluster(namespace, "with", 1, never)
	without := kube.NewCluster(namespace, "without", 1, never)
	without.Spec.Plugins = nil
	for _, c := range []*cnpgv1.Cluster{with, without} {
		if err := begin(ctx, kube, c); err != nil {
			return err
		}
	}
	for _, part := range []struct {
		name    string
		measure func() error
	}{
		{"shutdown", func() error { return shutdowns(ctx, kube, much.runs, with, without) }},
		{"failover", func() error { return failovers(ctx, kube, namespace, much.runs) }},
		{"hook", func() error { return hookLatency(ctx, kube, without) }},
		{"rest", func() error { return atRest(ctx, kube, with, much.rest) }},
		{"quiet", func() error { return quiet(ctx, kube, with, much.rest) }},
		{"storms", func() error { return storms(ctx, kube, with) }},
		{"pgbench", func() error { return pgbench(ctx, kube, with, without, much.runs) }},
		{"awake", func() error { return awake(ctx, kube, namespace, much.runs) }},
		{"pooled", func() error { return pooled(ctx, kube, namespace, much.runs) }},
		{"wakes", func() error { return wakes(ctx, kube, with, without, much.wakes) }},
		{"doze", func() error { return dozes(ctx, kube, namespace, with, without, much) }},
		{"operator", func() error { return operators(ctx, kube, namespace, with, much) }},
		{"shared-buffers", func() error { return dirtyDozes(ctx, kube, namespace, much.runs) }},
		{"prewarm", func() error { return prewarmed(ctx, kube, namespace, much.runs) }},
		{"beside", func() error { return besideOthers(ctx, kube, with, much.wakes) }},
		{"together", func() error { return together(ctx, kube, namespace, 20) }},
	} {
		if only != "" && !slices.Contains(strings.Split(only, ","), part.name) {
			continue
		}
		fmt.Printf("\n%s: %s\n", part.name, scenario.Conditions(ctx))
		if err := part.measure(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// compare runs the measurement on both clusters in turn and prints the medians and their ratio.
func compare(
	ctx context.Context, kube *scenario.Kubernetes, what string, runs int, with, without *cnpgv1.Cluster,
	measure measurement,
) error {
	times := map[*cnpgv1.Cluster][]time.Duration{}
	for i := range runs {
		for _, c := range []*cnpgv1.Cluster{with, without} {
			took, err := measure(ctx, kube, c)
			if err != nil {
				return fmt.Errorf("%s, cluster %s, run %d: %w", what, c.Name, i, err)
			}
			times[c] = append(times[c], took)
		}
	}
	a, b := median(times[with]), median(times[without])
	fmt.Printf("| %s (median of %d) | %.2f | %.2f | %.2f |\n", what, runs, a.Seconds(), b.Seconds(), a.Seconds()/b.Seconds())
	return nil
}

func median[T cmp.Ordered](figures []T) T {
	sorted := slices.Sorted(slices.Values(figures))
	return sorted[len(sorted)/2]
}

// atRest prints the resident memory and the processor time of each process of the sidecar.
func atRest(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster, lasts time.Duration) error {
	pod, err := primaryOf(ctx, kube, c)
	if err != nil {
		return err
	}
	processes := scenario.Processes(func(cmdline []string) bool {
		return cmdline[0] == "/sidecar" || cmdline[0] == "/supervisor"
	}, string(pod.UID))
	if len(processes) == 0 {
		fmt.Println("\nThe processes of the node cannot be seen from here: no figures of memory and processor time.")
		return nil
	}
	before := map[int]time.Duration{}
	for _, process := range processes {
		before[process], _ = scenario.ProcessorTime(process)
	}
	_ = scenario.Rest(ctx, lasts)
	fmt.Println("\n| process | resident (MiB) | of it anonymous (MiB) | processor (% of a core) |\n|---|---|---|---|")
	for _, process := range processes {
		after, _ := scenario.ProcessorTime(process)
		resident, anonymous, _, err := scenario.Memory(process)
		if err != nil {
			return err
		}
		fmt.Printf("| %d | %.1f | %.1f | %.2f |\n", process, resident, anonymous,
			100*(after-before[process]).Seconds()/lasts.Seconds())
	}
	return nil
}
