package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"syscall"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// scale is pgbench's, in units of 100,000 rows: 60 take about 900 MB, nearly all of the shared buffers.
	scale = 60
	// full is the share of the earlier rate that counts as recovered, by the median of window seconds.
	full, window = 0.9, 5
	// dozesAfter is the shortest time after which a cluster dozes, in minutes.
	dozesAfter = "0.5"
	// ran is how long pgbench runs before a sleep, and after it.
	ran = 90 * time.Second
)

// prewarmed prints how long after a doze, and after a hibernation, a cluster takes to serve queries as fast as before: one whose
// 1 GB of shared buffers begin empty, and one that reads them again by pg_prewarm. Both find the node's page cache as they left it,
// and once empty, as on another node.
func prewarmed(ctx context.Context, kube *scenario.Kubernetes, namespace string, runs int) error {
	cold, warm := kube.NewCluster(namespace, "cold", 1, never), kube.NewCluster(namespace, "warm", 1, never)
	warm.Spec.PostgresConfiguration.AdditionalLibraries = []string{"pg_prewarm"}
	clusters := []*cnpgv1.Cluster{cold, warm}
	for _, c := range clusters {
		c.Annotations[scenario.DozeMinutes] = dozesAfter // a pod can doze only if it was made when its cluster could
		c.Spec.StorageConfiguration.Size = "4Gi"
		c.Spec.PostgresConfiguration.Parameters = map[string]string{"shared_buffers": "1GB"}
		if err := begin(ctx, kube, c); err != nil {
			return err
		}
		if _, err := inPod(ctx, kube, c, fmt.Sprintf("-i -q -s %d", scale)); err != nil {
			return err
		}
	}
	fmt.Println("\n| after | cluster | before (tps) | in the first second | seconds to 90 % of before |\n|---|---|---|---|---|")
	for range runs {
		for _, sleep := range []struct {
			what  string
			begin func(*cnpgv1.Cluster) error
		}{
			{"a doze", func(c *cnpgv1.Cluster) error { return doze(ctx, kube, []*cnpgv1.Cluster{c}) }},
			{"a hibernation", func(c *cnpgv1.Cluster) error { return hibernatesOnce(ctx, kube, c) }},
			{"a hibernation, page cache emptied", func(c *cnpgv1.Cluster) error {
				return errors.Join(hibernatesOnce(ctx, kube, c), emptyPageCache())
			}},
		} {
			for _, c := range clusters {
				if _, err := firstQuery(ctx, kube, c); err != nil { // it dozes while the other one is measured
					return err
				}
				before, err := perSecond(ctx, kube, c)
				if err != nil {
					return err
				}
				if err := sleep.begin(c); err != nil {
					return err
				}
				if _, err := firstQuery(ctx, kube, c); err != nil {
					return err
				}
				after, err := perSecond(ctx, kube, c)
				if err != nil {
					return err
				}
				rate := median(before[len(before)/2:])
				fmt.Printf("| %s | %s | %.0f | %.0f | %s |\n", sleep.what, c.Name, rate, after[0], recovered(after, full*rate))
			}
		}
	}
	return deleteAll(ctx, kube, clusters)
}

// recovered says after how many seconds the rate is reached.
func recovered(rates []float64, rate float64) string {
	for second := range rates[:max(len(rates)-window, 0)] {
		if median(rates[second:second+window]) >= rate {
			return strconv.Itoa(second)
		}
	}
	return fmt.Sprintf("more than %d", len(rates)-window)
}

// hibernatesOnce has the cluster hibernate once.
func hibernatesOnce(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) error {
	if err := kube.Annotate(ctx, c, scenario.DozeMinutes, nil); err != nil {
		return fmt.Errorf("keep cluster %s from dozing: %w", c.Name, err)
	}
	if err := fallAsleep(ctx, kube, c); err != nil {
		return err
	}
	dozesAgain := dozesAfter
	return kube.Annotate(ctx, c, scenario.DozeMinutes, &dozesAgain)
}

// emptyPageCache has the kernel, which is the node's if this runs on the node, drop its page cache.
func emptyPageCache() error {
	syscall.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0o200); err != nil {
		return fmt.Errorf("empty the node's page cache: %w", err)
	}
	return nil
}

// perSecond are the transactions of each second that pgbench -S makes over the Unix socket.
func perSecond(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) ([]float64, error) {
	out, err := inPod(ctx, kube, c, fmt.Sprintf("-n -S -c 4 -P 1 -T %.0f", ran.Seconds()))
	if err != nil {
		return nil, err
	}
	var rates []float64
	for _, found := range regexp.MustCompile(`(?m)^progress: [0-9.]+ s, ([0-9.]+) tps`).FindAllStringSubmatch(out, -1) {
		rate, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			return nil, fmt.Errorf("read a rate of pgbench: %w", err)
		}
		rates = append(rates, rate)
	}
	if len(rates) < 2*window {
		return nil, fmt.Errorf("pgbench reports %d seconds: %s", len(rates), out)
	}
	return rates, nil
}

// inPod runs pgbench in the primary's pod.
func inPod(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster, arguments string) (string, error) {
	out, err := kube.Exec(ctx, c.Namespace, c.Status.CurrentPrimary, "postgres", "bash", "-c", pgbenchProgram+" -U postgres "+arguments+" postgres 2>&1")
	if err != nil {
		return "", fmt.Errorf("run pgbench %s: %w", arguments, err)
	}
	return out, nil
}
