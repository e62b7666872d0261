package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// toDoze bounds the wait for a doze: half a minute without use, and what one that is not begun at once needs.
	toDoze = 3 * time.Minute
	// settles is longer than what follows a stop or a wake: the resize of the pod, and what the operator writes.
	settles = 3 * time.Second
)

// dozes measures a client's first query over TLS: to a cluster of the stock operator that is always awake, to clusters that doze, to one
// that hibernates, and to one of the stock operator that a person wakes from its own hibernation while the client retries. The dozing
// clusters fall asleep together and are queried in turn, each beside the one that is always awake; nothing else wakes or falls asleep
// meanwhile. In the first rounds the two others, which take long, are queried before.
func dozes(ctx context.Context, kube *scenario.Kubernetes, namespace string, hibernating, stock *cnpgv1.Cluster, much amounts) error {
	dozing, err := several(ctx, kube, namespace, "dozing", min(max(much.dozers, 1), much.dozes), dozesAfter)
	if err != nil {
		return err
	}
	var awake, dozed, hibernated, byHand []time.Duration
	for round := 0; len(dozed) < much.dozes || round < much.hibernations; round++ {
		if err := doze(ctx, kube, dozing); err != nil {
			return err
		}
		if round < much.hibernations {
			fromHibernation, err := wake(ctx, kube, hibernating, true)
			if err != nil {
				return fmt.Errorf("hibernated: %w", err)
			}
			stockWake, err := wake(ctx, kube, stock, false)
			if err != nil {
				return fmt.Errorf("woken by hand: %w", err)
			}
			hibernated, byHand = append(hibernated, fromHibernation), append(byHand, stockWake)
			_ = scenario.Rest(ctx, settles)
		}
		for _, c := range dozing[:min(len(dozing), much.dozes-len(dozed))] {
			at, err := firstQuery(ctx, kube, stock)
			if err != nil {
				return fmt.Errorf("always awake: %w", err)
			}
			from, err := firstQuery(ctx, kube, c)
			if err != nil {
				return fmt.Errorf("dozing: %w", err)
			}
			awake, dozed = append(awake, at), append(dozed, from)
		}
	}
	fmt.Println("\n| first query through -rw, over TLS | median (s) | 95th percentile | least | most | dozing / this |")
	fmt.Println("|---|---|---|---|---|---|")
	for _, row := range []struct {
		what  string
		times []time.Duration
	}{
		{"always awake, the stock operator", awake},
		{"dozing", dozed},
		{"hibernated", hibernated},
		{"the stock operator, woken by hand", byHand},
	} {
		if t := row.times; len(t) != 0 {
			ratio := "-"
			if len(dozed) != 0 {
				ratio = fmt.Sprintf("%.3f", median(dozed).Seconds()/median(t).Seconds())
			}
			fmt.Printf("| %s (%d runs) | %.3f | %.3f | %.3f | %.3f | %s |\n", row.what, len(t), median(t).Seconds(), late(t).Seconds(),
				slices.Min(t).Seconds(), slices.Max(t).Seconds(), ratio)
		}
	}
	return deleteAll(ctx, kube, dozing)
}

// several creates clusters that doze, after minutes that may be half a one, or never.
func several(
	ctx context.Context, kube *scenario.Kubernetes, namespace, name string, count int, minutes string,
) ([]*cnpgv1.Cluster, error) {
	clusters := make([]*cnpgv1.Cluster, count)
	for i := range clusters {
		clusters[i] = kube.NewCluster(namespace, fmt.Sprintf("%s-%d", name, i), 1, never)
		if minutes != never {
			clusters[i].Annotations[scenario.DozeMinutes] = minutes
		}
		if err := kube.Create(ctx, clusters[i]); err != nil {
			return nil, fmt.Errorf("create cluster %s: %w", clusters[i].Name, err)
		}
	}
	return clusters, nil
}

// doze waits until all clusters doze, at rest. A new one may do so before the others have been started.
func doze(ctx context.Context, kube *scenario.Kubernetes, clusters []*cnpgv1.Cluster) error {
	for _, c := range clusters {
		if _, err := kube.AwaitCluster(ctx, c, "dozing", toDoze+toHealthy, scenario.Dozing); err != nil {
			return err
		}
	}
	_ = scenario.Rest(ctx, settles)
	return nil
}

// firstQuery measures how long a client waits for its first answer, and waits until the cluster is healthy.
func firstQuery(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) (time.Duration, error) {
	d, err := databaseOf(ctx, kube, c)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := answer(ctx, d, toAnswer); err != nil {
		return 0, err
	}
	took := time.Since(start)
	return took, kube.AwaitHealthy(ctx, c, toHealthy)
}

// late returns the 95th percentile.
func late(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[(len(sorted)*95+99)/100-1]
}

// dirtying dirties about 590 MiB of shared buffers: seven rows on each of 75,000 pages.
const dirtying = `drop table if exists dirtied;
create table dirtied (text text) with (autovacuum_enabled = off);
insert into dirtied select repeat('x', 1000) from generate_series(1, 7 * 75000)`

// dirtyDozes has a cluster doze whose shared buffers are 1 GB, more than half of it dirtied a minute before. It prints how long PostgreSQL
// was prepared for its stop, for how long it stopped, and how long the first query took. The clocks of this machine and of the node
// must agree.
func dirtyDozes(ctx context.Context, kube *scenario.Kubernetes, namespace string, runs int) error {
	c := kube.NewCluster(namespace, "dirty", 1, never)
	c.Annotations[scenario.DozeMinutes] = "1"
	c.Spec.StorageConfiguration.Size = "8Gi"
	c.Spec.PostgresConfiguration.Parameters = map[string]string{ // nothing but the preparation is to write the buffers
		"shared_buffers": "1GB", "max_wal_size": "4GB", "checkpoint_timeout": "1h", "bgwriter_lru_maxpages": "0",
	}
	if err := begin(ctx, kube, c); err != nil {
		return err
	}
	fmt.Println("\n| run | prepared (s) | of it the checkpoint | fence to stopped (s) | first query (s) |")
	fmt.Println("|---|---|---|---|---|")
	for run := range runs {
		row, err := dirtyDoze(ctx, kube, c)
		if err != nil {
			return fmt.Errorf("run %d: %w", run+1, err)
		}
		fmt.Printf("| %d | %s |\n", run+1, row)
	}
	return deleteAll(ctx, kube, []*cnpgv1.Cluster{c})
}

func dirtyDoze(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) (row string, err error) {
	d, err := databaseOf(ctx, kube, c)
	if err != nil {
		return "", err
	}
	if err := d.reachable(ctx); err != nil {
		return "", err
	}
	if err := dirty(ctx, d); err != nil {
		return "", err
	}
	dirtied := time.Now()
	var seen [3]time.Time // announced, fenced and stopped
	for i, annotation := range []string{scenario.Announced, scenario.Fence, scenario.PostgresStopped} {
		is := func(c *cnpgv1.Cluster) bool { return c.Annotations[annotation] != "" }
		if seen[i], err = kube.AwaitCluster(ctx, c, "annotated with "+annotation, toDoze, is); err != nil {
			return "", err
		}
	}
	text, err := kube.LogsSince(ctx, c.Namespace, c.Status.CurrentPrimary, "postgres", dirtied)
	if err != nil {
		return "", err
	}
	started, completed, err := checkpointIn(text, dirtied)
	if err != nil {
		return "", err
	}
	_ = scenario.Rest(ctx, settles)
	took, err := firstQuery(ctx, kube, c)
	return fmt.Sprintf("%.2f | %s | %.2f | %.3f",
		seen[0].Sub(started).Seconds(), completed, seen[2].Sub(seen[1]).Seconds(), took.Seconds()), err
}

// dirty leaves more than half of the shared buffers dirty.
func dirty(ctx context.Context, d database) error {
	conn, err := d.connect(ctx, "require")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, dirtying)
	return err
}

var errNoCheckpoint = errors.New("the log has no complete checkpoint")

// checkpointIn returns when the first checkpoint after a time began, with which a preparation begins, and what PostgreSQL says at its
// end.
func checkpointIn(log string, after time.Time) (started time.Time, completed string, err error) {
	for line := range strings.Lines(log) {
		switch at, message := scenario.Logged([]byte(line)); {
		case at.Before(after):
		case strings.HasPrefix(message, "checkpoint starting") && started.IsZero():
			started = at
		case strings.HasPrefix(message, "checkpoint complete") && !started.IsZero():
			completed, _, _ = strings.Cut(strings.TrimPrefix(message, "checkpoint complete: "), "; sync files")
			return started, completed, nil
		}
	}
	return started, "", errNoCheckpoint
}

func deleteAll(ctx context.Context, kube *scenario.Kubernetes, clusters []*cnpgv1.Cluster) error {
	var failed error
	for _, c := range clusters {
		failed = errors.Join(failed, kube.Delete(ctx, c))
	}
	return failed
}
