package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// bareMinutes is the threshold of clusters without clients, and bareThreshold the same: each standby's slot replicator
	// opens two sessions in it, and the exporter is scraped four times.
	bareMinutes   = "1"
	bareThreshold = time.Minute
	// knockEvery is how often somebody knocks who does not get in.
	knockEvery = 5 * time.Second
)

// infrastructure has clusters without clients fall asleep again and again, each woken by hand: with nothing but what is there
// anyway, standbys, probes and a scraped exporter, and with somebody who knocks at each instance without getting in, from a pod
// beside them that has the image of the cluster given.
func infrastructure(ctx context.Context, kube *scenario.Kubernetes, image *cnpgv1.Cluster, thresholds int) error {
	if err := kube.StartClientPod(ctx, image); err != nil {
		return err
	}
	watches := []*bare{
		{name: "bare-1", instances: 1}, {name: "bare-3", instances: 3},
		{name: "knocked-1", instances: 1, knocked: true}, {name: "knocked-3", instances: 3, knocked: true},
	}
	failures := make([]error, len(watches))
	var group sync.WaitGroup
	for i, w := range watches {
		group.Go(func() { failures[i] = w.watch(ctx, kube, image.Namespace, thresholds) })
	}
	group.Wait()
	fmt.Printf("\n| nobody but infrastructure, threshold %s | pg_isready | wrong passwords | thresholds | asleep within %s after it | too early | seconds after the threshold |\n|---|---|---|---|---|---|---|\n",
		bareThreshold, toSleep)
	for _, w := range watches {
		fmt.Print(w.row())
	}
	return errors.Join(failures...)
}

// bare is a cluster without clients.
type bare struct {
	name      string
	instances int
	// knocked says that somebody knocks.
	knocked bool

	asked, refused atomic.Int64
	inTime, early  int
	lateness       []time.Duration
}

func (b *bare) watch(ctx context.Context, kube *scenario.Kubernetes, namespace string, thresholds int) error {
	c := kube.NewCluster(namespace, b.name, b.instances, bareMinutes)
	if err := kube.Create(ctx, c); err != nil {
		return fmt.Errorf("create cluster %s: %w", c.Name, err)
	}
	for range thresholds {
		if err := kube.AwaitHealthy(ctx, c, toHealthy); err != nil {
			return err
		}
		if err := b.fallAsleep(ctx, kube, c); err != nil {
			return fmt.Errorf("cluster %s, threshold %d: %w", c.Name, len(b.lateness)+1, err)
		}
		if _, err := kube.AwaitCluster(ctx, c, "hibernated", time.Minute, scenario.Hibernated); err != nil {
			return err
		}
		if err := kube.Wake(ctx, c); err != nil {
			return err
		}
	}
	if err := kube.Delete(ctx, c); err != nil {
		return fmt.Errorf("delete cluster %s: %w", c.Name, err)
	}
	return nil
}

// fallAsleep waits until a healthy cluster sleeps, and notes how long after its threshold that was: it begins with the idle
// clock of the instance that began to look last.
func (b *bare) fallAsleep(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) error {
	pods, err := instancesOf(ctx, kube, c)
	if err != nil {
		return err
	}
	if err := awaitLooking(ctx, kube, pods); err != nil {
		return err
	}
	_, began, err := newest(ctx, kube, pods)
	if err != nil {
		return err
	}
	background, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() { scrape(background, kube, pods) })
	var intrusion error
	if b.knocked {
		group.Go(func() { intrusion = b.knock(background, kube, pods) })
	}
	at, err := kube.AwaitCluster(ctx, c, "put to sleep", toHealthy, scenario.SwitchedOn)
	stop()
	group.Wait()
	if err := errors.Join(err, intrusion); err != nil {
		return err
	}
	after := at.Sub(began.Add(bareThreshold))
	b.lateness = append(b.lateness, after)
	switch {
	case after < 0:
		b.early++
	case after <= toSleep:
		b.inTime++
	}
	fmt.Printf("%s %s: asleep %.2f s after the threshold\n", at.Format(time.StampMilli), b.name, after.Seconds())
	return nil
}

// errIntruded says that somebody got in who should not have.
var errIntruded = errors.New("a wrong password was let in")

// knock asks each instance whether it is there, and tries a wrong password over TLS: at the address of its pod, since the
// Service of a cluster that falls asleep leads to the gateway, for whom they would be clients.
func (b *bare) knock(ctx context.Context, kube *scenario.Kubernetes, pods []corev1.Pod) error {
	var script strings.Builder
	for _, pod := range pods {
		fmt.Fprintf(&script, "pg_isready -h %[1]s -U app -d app -t 2\n"+
			"PGPASSWORD=wrong psql 'host=%[1]s user=app dbname=app sslmode=require connect_timeout=2' -c 'select 1' 2>&1 && echo intruded\n", pod.Status.PodIP)
	}
	ticker := time.NewTicker(knockEvery)
	defer ticker.Stop()
	for {
		out, err := kube.Client(ctx, pods[0].Namespace, script.String()+"true")
		switch {
		case strings.Contains(out, "intruded"):
			return errIntruded
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		b.asked.Add(int64(strings.Count(out, "accepting connections")))
		b.refused.Add(int64(strings.Count(out, "password authentication failed")))
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// row is the line of the table.
func (b *bare) row() string {
	after := "-"
	if len(b.lateness) != 0 {
		after = fmt.Sprintf("%.2f to %.2f, median %.2f", slices.Min(b.lateness).Seconds(), slices.Max(b.lateness).Seconds(), median(b.lateness).Seconds())
	}
	return fmt.Sprintf("| %d instances | %d | %d | %d | %d | %d | %s |\n", b.instances, b.asked.Load(), b.refused.Load(), len(b.lateness), b.inTime, b.early, after)
}
