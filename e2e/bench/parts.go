package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// milestone is something that a pod shows while its cluster is woken; nil: the client's answer.
type milestone struct {
	what    string
	reached func(*corev1.Pod) bool
}

// milestones are in their order. What precedes each is that program's part of a wake.
var milestones = []milestone{
	{"the gateway and the operator, until the pod is there", func(*corev1.Pod) bool { return true }},
	{"the scheduler", func(p *corev1.Pod) bool { return scenario.Is(p, corev1.PodScheduled) }},
	{"volumes and sandbox", func(p *corev1.Pod) bool { return scenario.Is(p, corev1.PodReadyToStartContainers) }},
	{"init containers", func(p *corev1.Pod) bool { return scenario.Is(p, corev1.PodInitialized) }},
	{"PostgreSQL's container", func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == "postgres" && s.State.Running != nil })
	}},
	{"the instance manager, PostgreSQL and the gateway, until the answer", nil},
	{"after the answer, until the pod is ready", scenario.Ready},
}

// wakes compares the first query after hibernation with that of a cluster of the stock operator that is woken by hand, in turn, and
// prints what the time of a wake is made of, as a watch of the pod sees it.
func wakes(ctx context.Context, kube *scenario.Kubernetes, with, without *cnpgv1.Cluster, runs int) error {
	var ours, stock []time.Duration
	parts := make([][]time.Duration, len(milestones))
	for range runs {
		took, reached, err := watchedWake(ctx, kube, with)
		if err != nil {
			return fmt.Errorf("hibernated: %w", err)
		}
		byHand, err := wake(ctx, kube, without, false)
		if err != nil {
			return fmt.Errorf("woken by hand: %w", err)
		}
		ours, stock = append(ours, took), append(stock, byHand)
		last := time.Duration(0)
		for i, at := range reached {
			parts[i], last = append(parts[i], max(at-last, 0)), max(at, last)
		}
	}
	fmt.Printf("\n| first query after hibernation, through -rw, over TLS | median of %d (s) | least | most | ratio |\n|---|---|---|---|---|\n", runs)
	for _, row := range []struct {
		what  string
		times []time.Duration
	}{{"by a connection", ours}, {"the stock operator, woken by hand", stock}} {
		fmt.Printf("| %s | %.2f | %.2f | %.2f | %.2f |\n", row.what, median(row.times).Seconds(), slices.Min(row.times).Seconds(),
			slices.Max(row.times).Seconds(), median(ours).Seconds()/median(row.times).Seconds())
	}
	fmt.Println("\n| part of a wake | median (s) | least | most |\n|---|---|---|---|")
	for i, times := range parts {
		fmt.Printf("| %s | %.2f | %.2f | %.2f |\n", milestones[i].what, median(times).Seconds(), slices.Min(times).Seconds(), slices.Max(times).Seconds())
	}
	return nil
}

// watchedWake is wake by a connection, with the time from its start to each milestone.
func watchedWake(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) (time.Duration, []time.Duration, error) {
	d, err := databaseOf(ctx, kube, c)
	if err != nil {
		return 0, nil, err
	}
	if err := fallAsleep(ctx, kube, c); err != nil {
		return 0, nil, err
	}
	pods, err := kube.Watch(ctx, &corev1.PodList{}, client.InNamespace(c.Namespace), client.MatchingLabels{"cnpg.io/cluster": c.Name})
	if err != nil {
		return 0, nil, fmt.Errorf("watch the pods of cluster %s: %w", c.Name, err)
	}
	reached, start := make([]time.Duration, len(milestones)), time.Now()
	var watching sync.WaitGroup
	watching.Go(func() {
		for event := range pods.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			for i := range milestones {
				if ok && pod.DeletionTimestamp.IsZero() && reached[i] == 0 && milestones[i].reached != nil && milestones[i].reached(pod) {
					reached[i] = time.Since(start)
				}
			}
		}
	})
	err = answer(ctx, d, toAnswer)
	took := time.Since(start)
	if err == nil {
		err = kube.AwaitHealthy(ctx, c, toHealthy)
	}
	_ = scenario.Rest(ctx, settles) // what the kubelet reports late
	pods.Stop()
	watching.Wait()
	reached[slices.IndexFunc(milestones, func(m milestone) bool { return m.reached == nil })] = took
	return took, reached, err
}
