package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// soon is a threshold of three seconds, in minutes.
	soon = "0.05"
	// toAnswer is how long a client may wait before it counts as hanging.
	toAnswer = 30 * time.Second
)

// wake lets the cluster sleep and measures how long a client waits for its first answer.
func wake(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster, byConnection bool) (time.Duration, error) {
	d, err := databaseOf(ctx, kube, c)
	if err != nil {
		return 0, err
	}
	if byConnection {
		err = fallAsleep(ctx, kube, c)
	} else {
		on := "on"
		err = kube.Annotate(ctx, c, scenario.Hibernation, &on)
	}
	if err != nil {
		return 0, err
	}
	if _, err := kube.AwaitCluster(ctx, c, "hibernated", time.Minute, scenario.Hibernated); err != nil {
		return 0, err
	}
	start := time.Now()
	if !byConnection {
		if err := kube.Wake(ctx, c); err != nil {
			return 0, err
		}
	}
	for err = answer(ctx, d, patience[byConnection]); err != nil; err = answer(ctx, d, patience[byConnection]) {
		if byConnection || time.Since(start) > toHealthy {
			return 0, err
		}
	}
	took := time.Since(start)
	return took, kube.AwaitHealthy(ctx, c, toHealthy)
}

// fallAsleep lets the cluster fall asleep, and keeps it from doing so again. While its pods are still there the sidecar would
// take a setting by which it is not to sleep for a reason to turn hibernation off.
func fallAsleep(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) error {
	short, long := soon, never
	if err := kube.Annotate(ctx, c, scenario.InactivityMinutes, &short); err != nil {
		return err
	}
	if _, err := kube.AwaitCluster(ctx, c, "hibernated", toHealthy, scenario.Hibernated); err != nil {
		return err
	}
	return kube.Annotate(ctx, c, scenario.InactivityMinutes, &long)
}

// patience is how long a client waits for an answer, by whether its connection wakes the cluster. One that must retry gives up soon: with
// kube-proxy's iptables mode, a connection hangs that begins just as a Service gets its first endpoint.
var patience = map[bool]time.Duration{true: toAnswer, false: time.Second}

// answer connects and runs a query.
func answer(ctx context.Context, d database, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := d.patient(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, "select 1")
	return err
}

// together wakes many clusters at once and prints how long each one's client waited.
func together(ctx context.Context, kube *scenario.Kubernetes, namespace string, count int) error {
	clusters, err := several(ctx, kube, namespace, "together", count, never)
	if err != nil {
		return err
	}
	for _, c := range clusters {
		if err := kube.AwaitHealthy(ctx, c, 2*toHealthy); err != nil {
			return err
		}
	}
	var falling errgroup.Group
	for _, c := range clusters {
		falling.Go(func() error { return fallAsleep(ctx, kube, c) })
	}
	if err := falling.Wait(); err != nil {
		return err
	}
	var databases []database
	for _, c := range clusters {
		d, err := databaseOf(ctx, kube, c)
		if err != nil {
			return err
		}
		databases = append(databases, d)
	}
	var waking errgroup.Group
	times := make([]time.Duration, len(clusters))
	for i, d := range databases {
		waking.Go(func() error {
			start := time.Now()
			err := answer(ctx, d, toHealthy)
			times[i] = time.Since(start)
			return err
		})
	}
	if err := waking.Wait(); err != nil {
		return err
	}
	woken, err := wokenBy(ctx, kube, clusters)
	if err != nil {
		return err
	}
	fmt.Printf("\n%d clusters woken at once, each by its client: %d wakes, answered after %.2f to %.2f s, median %.2f s, "+
		"95th percentile %.2f s\n", len(clusters), woken, slices.Min(times).Seconds(), slices.Max(times).Seconds(),
		median(times).Seconds(), late(times).Seconds())
	return deleteAll(ctx, kube, clusters)
}

// wokenBy is how many wakes of the clusters Events tell of, and demands that there is one of each.
func wokenBy(ctx context.Context, kube *scenario.Kubernetes, clusters []*cnpgv1.Cluster) (int, error) {
	for _, c := range clusters {
		if _, err := kube.AwaitEvent(ctx, c, "Woken", 30*time.Second); err != nil {
			return 0, err
		}
	}
	var events corev1.EventList
	if err := kube.List(ctx, &events, client.InNamespace(clusters[0].Namespace)); err != nil {
		return 0, fmt.Errorf("list the Events: %w", err)
	}
	woken := 0
	for i := range events.Items {
		about := events.Items[i].InvolvedObject.Name
		if events.Items[i].Reason == "Woken" && slices.ContainsFunc(clusters, func(c *cnpgv1.Cluster) bool { return c.Name == about }) {
			woken += int(max(events.Items[i].Count, 1))
		}
	}
	return woken, nil
}
