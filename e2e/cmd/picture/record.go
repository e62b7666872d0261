package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cnpg-i/scale-to-zero/e2e/monitoring"
	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// threshold of the clusters, in minutes, and toStart what they are given to become healthy.
	threshold = "0.25"
	toStart   = 5 * time.Minute
	// during is how long they are watched, and every how often somebody asks orders, the cluster whose details are drawn.
	during, every = 4 * time.Minute, 40 * time.Second
	detail        = "orders"
)

// seldom are the clusters that somebody asks once in so many times.
var seldom = map[string]int{"blog": 3, "wiki": 5}

// record makes a small fleet and has it watched: orders is asked again and again, blog and wiki seldom, crm has a session all the
// time, and reports is kept awake by an annotation.
func record(ctx context.Context, directory string) error {
	kube, err := scenario.Connect()
	if err != nil {
		return err
	}
	shipped, err := monitoring.Read("..")
	if err != nil {
		return err
	}
	r := recording{Detail: detail}
	if r.Namespace, err = kube.Namespace(ctx, "shop"); err != nil {
		return err
	}
	defer func() {
		doomed := &corev1.Namespace{}
		doomed.Name = r.Namespace
		_ = kube.Delete(context.WithoutCancel(ctx), doomed)
	}()
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return fmt.Errorf("make the directory: %w", err)
	}
	p, err := kube.StartPrometheus(ctx, os.Getenv("PROMETHEUS"), directory, shipped.Monitors, shipped.Rules.Spec, "")
	if err != nil {
		return err
	}
	defer func() { _ = p.Stop() }()
	clusters, err := fleet(ctx, kube, r.Namespace)
	if err != nil {
		return err
	}
	if err := p.Await(ctx, fmt.Sprintf("up{namespace=%q} == 1", r.Namespace), toStart); err != nil {
		return err
	}
	session, err := kube.Open(ctx, clusters["crm"], "rw")
	if err != nil {
		return err
	}
	defer session.Close()
	r.Begin = time.Now()
	if err := use(ctx, kube, clusters); err != nil {
		return err
	}
	r.End = time.Now()
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode what was recorded: %w", err)
	}
	if err := os.WriteFile(filepath.Join(directory, recordingFile), body, 0o600); err != nil {
		return fmt.Errorf("write what was recorded: %w", err)
	}
	return nil
}

// fleet makes the clusters, and a pod for clients, and waits until they are healthy.
func fleet(ctx context.Context, kube *scenario.Kubernetes, namespace string) (map[string]*cnpgv1.Cluster, error) {
	clusters := map[string]*cnpgv1.Cluster{}
	for _, name := range []string{detail, "blog", "wiki", "crm", "reports"} {
		c := kube.NewCluster(namespace, name, 1, threshold)
		c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
		if name == "reports" {
			c.Annotations[scenario.KeepAwakeUntil] = time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		}
		if err := kube.Create(ctx, c); err != nil {
			return nil, fmt.Errorf("create the cluster %s: %w", name, err)
		}
		clusters[name] = c
	}
	group, healthy := errgroup.WithContext(ctx)
	for _, c := range clusters {
		// One that was healthy early may sleep by now, and is not looked at again.
		group.Go(func() error { return kube.AwaitHealthy(healthy, c, toStart) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return clusters, kube.StartClientPod(ctx, clusters["crm"])
}

// use asks the clusters.
func use(ctx context.Context, kube *scenario.Kubernetes, clusters map[string]*cnpgv1.Cluster) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	end := time.After(during)
	for turn := 1; ; turn++ {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-end:
			return nil
		case <-ticker.C:
		}
		asked := []string{detail}
		for name, times := range seldom {
			if turn%times == 0 {
				asked = append(asked, name)
			}
		}
		for _, name := range asked {
			if _, err := kube.Query(ctx, clusters[name], "rw", "select 1"); err != nil {
				return fmt.Errorf("ask %s: %w", name, err)
			}
		}
	}
}
