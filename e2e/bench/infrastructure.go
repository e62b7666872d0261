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
	// opens two sessions in it, and the exporter is scraped eight times.
	bareMinutes   = "1"
	bareThreshold = time.Minute
	// databasePort is that of PostgreSQL in the instances.
	databasePort = 5432
	// scrapers is how many scrape the exporter, as a pair of Prometheus servers does.
	scrapers = 2
	// connectEvery is how often somebody connects who is no client of PostgreSQL.
	connectEvery = 5 * time.Second
)

// infrastructure has clusters without clients fall asleep again and again, each woken by hand: with nothing but what is there
// anyway, standbys, probes and an exporter that two scrape, and with somebody who connects to each instance and sends less than a
// client does, from a pod beside them that has the image of the cluster given. Whoever would not wake a sleeping cluster keeps
// none awake: each sleep must be on time.
func infrastructure(ctx context.Context, kube *scenario.Kubernetes, image *cnpgv1.Cluster, thresholds int) error {
	if err := kube.StartClientPod(ctx, image); err != nil {
		return err
	}
	watches := []*bare{
		{name: "bare-1", instances: 1}, {name: "bare-3", instances: 3},
		{name: "connected-1", instances: 1, connected: true}, {name: "connected-3", instances: 3, connected: true},
	}
	failures := make([]error, len(watches))
	var group sync.WaitGroup
	for i, w := range watches {
		group.Go(func() { failures[i] = w.watch(ctx, kube, image.Namespace, thresholds) })
	}
	group.Wait()
	fmt.Printf("\n| nobody but infrastructure, threshold %s | bare connects | SSLRequests alone | thresholds | asleep within %s after it | too early | seconds after the threshold |\n|---|---|---|---|---|---|---|\n",
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
	// connected says that somebody connects without a startup packet.
	connected bool

	bareConnects, sslRequests atomic.Int64
	inTime, early             int
	lateness                  []time.Duration
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
// clock of the instance that began to sample last.
func (b *bare) fallAsleep(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) error {
	pods, err := instancesOf(ctx, kube, c)
	if err != nil {
		return err
	}
	if err := awaitSampling(ctx, kube, pods); err != nil {
		return err
	}
	_, began, err := newest(ctx, kube, pods)
	if err != nil {
		return err
	}
	background, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	for range scrapers {
		group.Go(func() { scrape(background, kube, pods) })
	}
	var failure error
	if b.connected {
		group.Go(func() { failure = b.connect(background, kube, pods) })
	}
	at, err := kube.AwaitCluster(ctx, c, "put to sleep", toHealthy, scenario.HibernationOn)
	stop()
	group.Wait()
	if err := errors.Join(err, failure); err != nil {
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

// connect opens connections to each instance that are no client's: one that sends nothing, and one that asks for TLS, reads the
// answer and goes. It does so at the address of the pod, since the Service of a cluster that falls asleep leads to the gateway.
func (b *bare) connect(ctx context.Context, kube *scenario.Kubernetes, pods []corev1.Pod) error {
	var script strings.Builder
	for _, pod := range pods {
		at := fmt.Sprintf("/dev/tcp/%s/%d", pod.Status.PodIP, databasePort)
		fmt.Fprintf(&script, "timeout 2 bash -c ': <%s' && echo connected\n", at)
		fmt.Fprintf(&script, `timeout 2 bash -c 'exec 3<>%s; printf "\x00\x00\x00\x08\x04\xd2\x16\x2f" >&3; read -rN1 -u3 && echo answered'`+"\n", at)
	}
	ticker := time.NewTicker(connectEvery)
	defer ticker.Stop()
	for {
		out, err := kube.Client(ctx, pods[0].Namespace, script.String()+"true")
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		b.bareConnects.Add(int64(strings.Count(out, "connected")))
		b.sslRequests.Add(int64(strings.Count(out, "answered")))
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
	return fmt.Sprintf("| %d instances | %d | %d | %d | %d | %d | %s |\n", b.instances, b.bareConnects.Load(), b.sslRequests.Load(), len(b.lateness), b.inTime, b.early, after)
}
