package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// gapMinutes is the threshold of the clusters that sleep between sessions, and gapThreshold the same.
	gapMinutes   = "0.1"
	gapThreshold = 6 * time.Second
	// shortestGap and longestGap enclose the time from the end of a session to the next one: around the threshold, and above it.
	shortestGap = gapThreshold / 2
	longestGap  = 3 * gapThreshold
	// toSleep is how long after the threshold hibernation may be turned on: the other instances sample once more, and the
	// handover waits for two seconds.
	toSleep = 5 * time.Second
)

// gaps opens sessions of 1 to 50 ms with gaps around the threshold and above it, so that the cluster sleeps after most of them
// and is woken by the next one through the gateway. Each is judged alone: by the sidecars' pages, and by the moment of sleep,
// which must not come before the threshold after its end, nor much later.
func gaps(ctx context.Context, kube *scenario.Kubernetes, namespace string, sessions int) error {
	clusters := []*cnpgv1.Cluster{kube.NewCluster(namespace, "gaps-1", 1, never), kube.NewCluster(namespace, "gaps-3", 3, never)}
	rows := make([]string, len(clusters))
	failures := make([]error, len(clusters))
	var group sync.WaitGroup
	for i, c := range clusters {
		group.Go(func() { rows[i], failures[i] = gapsOf(ctx, kube, c, sessions) })
	}
	group.Wait()
	fmt.Printf("\n| sessions with gaps of %s to %s, threshold %s | sessions | seen | not, but the clock began anew | asleep after it, too early | hibernation was withdrawn | it came in the second of the last sample | in time | too late | "+
		"next one came earlier | seconds after the threshold | tries to connect that failed | seen by a count every %s |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n%s",
		shortestGap, longestGap, gapThreshold, referenceTick, strings.Join(rows, ""))
	return errors.Join(failures...)
}

// gapsOf does so with one cluster; with replicas a third of the sessions goes through -ro.
func gapsOf(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster, sessions int) (string, error) {
	if err := kube.Create(ctx, c); err != nil {
		return "", fmt.Errorf("create cluster %s: %w", c.Name, err)
	}
	if err := kube.AwaitHealthy(ctx, c, toHealthy); err != nil {
		return "", err
	}
	visits, err := visitsTo(ctx, kube, c)
	if err != nil {
		return "", err
	}
	pods, err := instancesOf(ctx, kube, c)
	if err != nil {
		return "", err
	}
	short := gapMinutes
	if err := kube.Annotate(ctx, c, scenario.InactivityMinutes, &short); err != nil {
		return "", err
	}
	background, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	reference, watched := 0, c.DeepCopy()
	group.Go(func() { reference = countLikeTheReference(background, kube, watched) })
	group.Go(func() { scrape(background, kube, pods) })
	for i := range sessions {
		if err = visits.one(ctx, i); err != nil {
			break
		}
	}
	stop()
	group.Wait()
	if err != nil {
		return visits.row(reference), fmt.Errorf("cluster %s after %d sessions: %w", c.Name, visits.sessions, err)
	}
	if err := kube.Delete(ctx, c); err != nil {
		return "", fmt.Errorf("delete cluster %s: %w", c.Name, err)
	}
	if missed := visits.sessions - visits.seen - visits.restarted; missed != 0 || visits.early != 0 {
		return visits.row(reference), fmt.Errorf("%d sessions with cluster %s were not seen, and it slept too early %d times", missed, c.Name, visits.early)
	}
	return visits.row(reference), nil
}

// visits are the sessions with one cluster, and what came of them.
type visits struct {
	kube      *scenario.Kubernetes
	cluster   *cnpgv1.Cluster
	databases []database

	sessions, seen, restarted         int
	early, raced, inTime, late, awake int
	withdrawn                         int
	unanswered                        int
	lateness                          []time.Duration
}

func visitsTo(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) (*visits, error) {
	v := &visits{kube: kube, cluster: c}
	services := []string{"rw"}
	if c.Spec.Instances > 1 {
		services = []string{"rw", "rw", "ro"}
	}
	for _, service := range services {
		d, err := databaseOf(ctx, kube, c, service)
		if err != nil {
			return nil, err
		}
		v.databases = append(v.databases, d)
	}
	return v, nil
}

// one is a session, and the gap behind it. A cluster that sleeps is woken by a session of its own first, since the idle clock
// of a woken cluster starts anew behind it: only one that comes later is judged.
func (v *visits) one(ctx context.Context, i int) error {
	d := v.databases[i%len(v.databases)]
	if err := v.awaken(ctx, d); err != nil {
		return err
	}
	pods, err := instancesOf(ctx, v.kube, v.cluster)
	if err != nil {
		return err
	}
	if err := awaitSampling(ctx, v.kube, pods); err != nil {
		return err
	}
	began := time.Now()
	ended, err := v.session(ctx, d)
	if err != nil {
		return err
	}
	v.sessions++
	noticed, restarted, err := notices(ctx, v.kube, pods, ended)
	switch {
	case err != nil:
		return err
	case noticed:
		v.seen++
	case restarted:
		v.restarted++
	}
	return v.gap(ctx, began, ended, shortestGap+rand.N(longestGap-shortestGap))
}

// awaken connects until the cluster is awake. A session that comes just after hibernation may still be served by the instance
// that is about to end, and wakes nobody then.
func (v *visits) awaken(ctx context.Context, d database) error {
	for {
		_, err := v.kube.AwaitCluster(ctx, v.cluster, "awake or asleep", toHealthy, func(c *cnpgv1.Cluster) bool {
			return scenario.Healthy(c) || scenario.HibernationOn(c) && scenario.Hibernated(c)
		})
		if err != nil || !scenario.HibernationOn(v.cluster) {
			return err
		}
		if _, err := v.session(ctx, d); err != nil {
			return err
		}
	}
}

// gap watches the cluster until the gap is over.
func (v *visits) gap(ctx context.Context, began, ended time.Time, lasts time.Duration) error {
	_, err := v.kube.AwaitCluster(ctx, v.cluster, "asleep", time.Until(ended.Add(lasts)), scenario.HibernationOn)
	after := time.Since(ended) - gapThreshold
	switch {
	case err == nil:
		if err := v.slept(ctx, began, after); err != nil {
			return err
		}
		rest(ctx, time.Until(ended.Add(lasts)))
		return context.Cause(ctx)
	case ctx.Err() != nil:
		return err
	case lasts > gapThreshold+toSleep:
		v.late++
	default:
		v.awake++
	}
	return nil
}

// slept notes when hibernation was turned on. A session that begins between the last sample and hibernation, 0.2 s at most, is
// served, and has hibernation withdrawn where that is still possible; the time of that sample is written down in whole seconds.
func (v *visits) slept(ctx context.Context, began time.Time, after time.Duration) error {
	if after >= 0 {
		v.lateness = append(v.lateness, after)
	}
	switch {
	case after > toSleep:
		v.late++
		return nil
	case after >= 0:
		v.inTime++
		return nil
	}
	if err := v.kube.Get(ctx, client.ObjectKeyFromObject(v.cluster), v.cluster); err != nil {
		return fmt.Errorf("read the Cluster: %w", err)
	}
	sampled, err := time.Parse(time.RFC3339, v.cluster.Annotations[scenario.AsleepSince])
	switch {
	case !scenario.HibernationOn(v.cluster):
		v.withdrawn++
	case err == nil && !sampled.After(began):
		v.raced++
	default:
		v.early++
	}
	return nil
}

// session is one session of 1 to 50 ms; it returns a moment just before its end. What cannot connect tries again, and is
// counted.
func (v *visits) session(ctx context.Context, d database) (time.Time, error) {
	mode := []string{"disable", "require"}[rand.IntN(2)]
	for deadline := time.Now().Add(2 * toAnswer); ; rest(ctx, 100*time.Millisecond) {
		limited, cancel := context.WithTimeout(ctx, toAnswer)
		conn, err := d.open(limited, "sslmode="+mode)
		cancel()
		if err == nil {
			return soonEnded(ctx, conn), nil
		}
		if ctx.Err() != nil {
			return time.Time{}, context.Cause(ctx)
		}
		v.unanswered++
		fmt.Printf("%s %s: %v\n", time.Now().Format(time.StampMilli), v.cluster.Name, err)
		if time.Now().After(deadline) {
			return time.Time{}, err
		}
	}
}

// row is the line of the table.
func (v *visits) row(reference int) string {
	after := "-"
	if len(v.lateness) != 0 {
		after = fmt.Sprintf("%.2f to %.2f, median %.2f", slices.Min(v.lateness).Seconds(), slices.Max(v.lateness).Seconds(), median(v.lateness).Seconds())
	}
	return fmt.Sprintf("| %d instances | %d | %d | %d | %d | %d | %d | %d | %d | %s | %d | %d |\n", v.cluster.Spec.Instances, v.sessions, v.seen, v.restarted,
		v.early, v.raced, v.inTime, v.late, v.awake, after, v.unanswered, reference)
}
