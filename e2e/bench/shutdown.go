package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// toReply bounds one question to an instance.
const toReply = 10 * time.Second

// shutdowns compares what contains a shutdown of PostgreSQL.
func shutdowns(ctx context.Context, kube *scenario.Kubernetes, runs int, with, without *cnpgv1.Cluster) error {
	fmt.Println("| what | with (s) | without (s) | ratio |\n|---|---|---|---|")
	for _, m := range []struct {
		what    string
		measure measurement
	}{
		{"PostgreSQL's shutdown in a hibernation", shutdownIn(hibernate)},
		{"hibernation as a whole: from the annotation to the condition Hibernated", hibernate},
		{"PostgreSQL's shutdown in an in-place restart", shutdownIn(restart)},
		{"in-place restart as a whole: max_connections changed to a new postmaster", restart},
		{"a pod's end: deleted to PostgreSQL's last line", end},
	} {
		if err := compare(ctx, kube, m.what, runs, with, without, m.measure); err != nil {
			return err
		}
	}
	return nil
}

// measurement does something to a cluster and returns how long it took.
type measurement func(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) (time.Duration, error)

// shutdownIn measures PostgreSQL's own shutdown while something that contains one is done.
func shutdownIn(act measurement) measurement {
	return func(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) (time.Duration, error) {
		took, err := kube.Shutdown(ctx, c.Namespace, c.Status.CurrentPrimary)
		if err != nil {
			return 0, err
		}
		if _, err := act(ctx, kube, c); err != nil {
			return 0, err
		}
		shutdown, err := took()
		return shutdown.Ended.Sub(shutdown.Requested), err
	}
}

func hibernate(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) (time.Duration, error) {
	on := "on"
	start := time.Now()
	if err := kube.Annotate(ctx, c, scenario.Hibernation, &on); err != nil {
		return 0, err
	}
	done, err := kube.AwaitCluster(ctx, c, "hibernated", 5*time.Minute, scenario.Hibernated)
	if err != nil {
		return 0, err
	}
	if err := kube.Wake(ctx, c); err != nil {
		return 0, err
	}
	return done.Sub(start), kube.AwaitHealthy(ctx, c, toHealthy)
}

// restart changes max_connections, up and down in turn, and waits until another postmaster answers.
func restart(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) (time.Duration, error) {
	before, err := postmaster(ctx, kube, c)
	if err != nil {
		return 0, err
	}
	changed := c.DeepCopy()
	if changed.Spec.PostgresConfiguration.Parameters == nil {
		changed.Spec.PostgresConfiguration.Parameters = map[string]string{}
	}
	parameters := changed.Spec.PostgresConfiguration.Parameters
	if parameters["max_connections"] == "120" {
		parameters["max_connections"] = "100"
	} else {
		parameters["max_connections"] = "120"
	}
	start := time.Now()
	if err := kube.Patch(ctx, changed, client.MergeFrom(c)); err != nil {
		return 0, fmt.Errorf("change max_connections: %w", err)
	}
	if err := anew(ctx, kube, c, before); err != nil {
		return 0, err
	}
	took := time.Since(start)
	return took, kube.AwaitHealthy(ctx, c, toHealthy)
}

// anew waits until another postmaster answers.
func anew(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster, before string) error {
	limited, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errors.New("no new postmaster within 5 minutes"))
	defer cancel()
	for {
		after, err := postmaster(limited, kube, c)
		if err == nil && after != before {
			return nil
		}
		if limited.Err() != nil {
			return context.Cause(limited)
		}
	}
}

// postmaster tells when the postmaster began. A stream that was opened while the server went down was once seen not to end, so
// a question has a limit of its own.
func postmaster(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, toReply)
	defer cancel()
	out, err := kube.Exec(ctx, c.Namespace, c.Status.CurrentPrimary, "postgres",
		"psql", "-XAtq", "-U", "postgres", "-c", "select pg_postmaster_start_time()", "postgres")
	return strings.TrimSpace(out), err
}

// end deletes the primary's pod and returns how long PostgreSQL is there after that, whatever hooks the pod has; the clocks of
// this machine and of the node must agree.
func end(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) (time.Duration, error) {
	before, err := postmaster(ctx, kube, c)
	if err != nil {
		return 0, err
	}
	shutdown, err := kube.Shutdown(ctx, c.Namespace, c.Status.CurrentPrimary)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := deletePrimary(ctx, kube, c); err != nil {
		return 0, err
	}
	ended, err := shutdown()
	if err != nil {
		return 0, err
	}
	if err := anew(ctx, kube, c, before); err != nil {
		return 0, err
	}
	return ended.Ended.Sub(start), kube.AwaitHealthy(ctx, c, toHealthy)
}

// failovers compares how long a cluster of two instances is without a primary when the primary's pod is deleted.
func failovers(ctx context.Context, kube *scenario.Kubernetes, namespace string, runs int) error {
	with := kube.NewCluster(namespace, "failover-with", 2, never)
	without := kube.NewCluster(namespace, "failover-without", 2, never)
	without.Spec.Plugins = nil
	for _, c := range []*cnpgv1.Cluster{with, without} {
		if err := begin(ctx, kube, c); err != nil {
			return err
		}
	}
	fmt.Println("| what | with (s) | without (s) | ratio |\n|---|---|---|---|")
	return compare(ctx, kube, "failover: primary deleted to another instance being the primary", runs, with, without, failover)
}

func failover(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) (time.Duration, error) {
	before := c.Status.CurrentPrimary
	start := time.Now()
	if err := deletePrimary(ctx, kube, c); err != nil {
		return 0, err
	}
	done, err := kube.AwaitCluster(ctx, c, "failed over", 5*time.Minute, func(c *cnpgv1.Cluster) bool {
		return c.Status.CurrentPrimary != before
	})
	if err != nil {
		return 0, err
	}
	return done.Sub(start), kube.AwaitHealthy(ctx, c, toHealthy)
}

// deletePrimary deletes the primary's pod and leaves its end to the grace period that the pod has.
func deletePrimary(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) error {
	doomed := &corev1.Pod{}
	doomed.Namespace, doomed.Name = c.Namespace, c.Status.CurrentPrimary
	return kube.Delete(ctx, doomed)
}
