package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// referenceTick is how often xataio/cnpg-i-scale-to-zero samples.
	referenceTick = time.Minute
	// referenceQuery is its query.
	referenceQuery = `SELECT count(*) FROM pg_stat_activity WHERE state IN ('active', 'idle', 'idle in transaction')
		AND pid != pg_backend_pid() AND usename != 'streaming_replica'`
	// toNotice is how long after its end a session must have been noticed.
	toNotice = 3 * time.Second
	// scrapeEvery is how often the operator's exporter is scraped meanwhile.
	scrapeEvery = 15 * time.Second
)

// recall opens sessions of 1 to 50 ms at random times, one after the other, without TLS and with it, and counts how many of
// them the sidecars saw: after each, the newest activity must not be older than its end. Beside it runs the query of the
// reference at its interval.
func recall(ctx context.Context, kube *scenario.Kubernetes, namespace string, sessions int) error {
	clusters := []*cnpgv1.Cluster{kube.NewCluster(namespace, "recall-1", 1, never), kube.NewCluster(namespace, "recall-3", 3, never)}
	for _, c := range clusters {
		if err := kube.Create(ctx, c); err != nil {
			return fmt.Errorf("create cluster %s: %w", c.Name, err)
		}
	}
	for _, c := range clusters {
		if err := kube.AwaitHealthy(ctx, c, toHealthy); err != nil {
			return err
		}
	}
	fmt.Printf("\n| sessions of 1 to 50 ms | opened | seen | not, but the clock began anew | seen by a count every %s |\n|---|---|---|---|---|\n", referenceTick)
	var group sync.WaitGroup
	results := make([]string, len(clusters))
	failures := make([]error, len(clusters))
	for i, c := range clusters {
		group.Go(func() { results[i], failures[i] = recallOf(ctx, kube, c, sessions) })
	}
	group.Wait()
	for i, c := range clusters {
		fmt.Print(results[i])
		if failures[i] != nil {
			return failures[i]
		}
		if err := kube.Delete(ctx, c); err != nil {
			return fmt.Errorf("delete cluster %s: %w", c.Name, err)
		}
	}
	return nil
}

// recallOf runs the sessions on one cluster; with replicas a third of them goes through -ro.
func recallOf(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster, sessions int) (string, error) {
	services := []string{"rw"}
	if c.Spec.Instances > 1 {
		services = []string{"rw", "rw", "ro"}
	}
	var databases []database
	for _, service := range services {
		d, err := databaseOf(ctx, kube, c, service)
		if err != nil {
			return "", err
		}
		databases = append(databases, d)
	}
	pods, err := instancesOf(ctx, kube, c)
	if err != nil {
		return "", err
	}
	if err := awaitSampling(ctx, kube, pods); err != nil {
		return "", err
	}
	background, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	reference := 0
	group.Go(func() { reference = countLikeTheReference(background, kube, c) })
	group.Go(func() { scrape(background, kube, pods) })
	seen, unknown := 0, 0
	for i := range sessions {
		ended, err := brief(ctx, databases[i%len(databases)], []string{"disable", "require"}[rand.IntN(2)])
		if err != nil {
			stop()
			return "", err
		}
		noticed, restarted, err := notices(ctx, kube, pods, ended)
		if err != nil {
			stop()
			return "", err
		}
		if noticed {
			seen++
		} else if restarted {
			unknown++
		}
		rest(ctx, rand.N(800*time.Millisecond))
	}
	stop()
	group.Wait()
	var missed error
	if count := sessions - seen - unknown; count != 0 {
		missed = fmt.Errorf("%d sessions with cluster %s were not seen, and its clock did not begin anew", count, c.Name)
	}
	return fmt.Sprintf("| %d instances | %d | %d | %d | %d |\n", c.Spec.Instances, sessions, seen, unknown, reference), missed
}

// brief is one session.
func brief(ctx context.Context, d database, mode string) (time.Time, error) {
	conn, err := d.connect(ctx, mode)
	if err != nil {
		return time.Time{}, err
	}
	return soonEnded(ctx, conn), nil
}

// soonEnded ends a session after 1 to 50 ms.
func soonEnded(ctx context.Context, conn *pgx.Conn) time.Time {
	rest(ctx, time.Millisecond+rand.N(49*time.Millisecond))
	ended := time.Now() // a little before: what counts is that nothing after it is missed
	_ = conn.Close(ctx)
	return ended
}

func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func instancesOf(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := kube.List(ctx, &pods, client.InNamespace(c.Namespace), client.MatchingLabels{"cnpg.io/cluster": c.Name, "cnpg.io/podRole": "instance"})
	if err != nil {
		return nil, fmt.Errorf("list the instances: %w", err)
	}
	return pods.Items, nil
}

// awaitSampling waits until every sidecar's idle clock runs: what was before it is unknown, which is not idle either.
func awaitSampling(ctx context.Context, kube *scenario.Kubernetes, pods []corev1.Pod) error {
	for _, pod := range pods {
		for deadline := time.Now().Add(toHealthy); ; rest(ctx, 50*time.Millisecond) {
			page, err := kube.Page(ctx, pod.Namespace, pod.Name, "9189", "activity")
			if err == nil && strings.Contains(page, `"idleSince"`) {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("the sidecar of %s does not sample: %s (%w)", pod.Name, page, err)
			}
		}
	}
	return nil
}

// notices reports whether an instance's newest activity is not older than the end of a session, and if not, whether an idle
// clock began anew after it: a sample failed meanwhile, say on a machine that was too busy, and unknown is not idle either.
func notices(ctx context.Context, kube *scenario.Kubernetes, pods []corev1.Pod, ended time.Time) (seen, restarted bool, err error) {
	var activity, clock time.Time
	for deadline := time.Now().Add(toNotice); time.Now().Before(deadline); rest(ctx, 50*time.Millisecond) {
		if activity, clock, err = newest(ctx, kube, pods); err != nil {
			return false, false, err
		}
		if !activity.Before(ended) {
			return true, false, nil
		}
	}
	fmt.Printf("a session that ended at %s was not seen; the newest activity was %s before, an idle clock began anew %s after it\n",
		ended.Format(time.StampMilli), ended.Sub(activity), clock.Sub(ended))
	return false, !clock.Before(ended), nil
}

// newest is the newest activity that any instance has seen, and the newest beginning of an idle clock.
func newest(ctx context.Context, kube *scenario.Kubernetes, pods []corev1.Pod) (activity, clock time.Time, err error) {
	for _, pod := range pods {
		page, err := kube.Page(ctx, pod.Namespace, pod.Name, "9189", "activity")
		if err != nil {
			return time.Time{}, time.Time{}, err
		}
		var report struct {
			LastActivity time.Time `json:"lastActivity"`
			IdleSince    time.Time `json:"idleSince"`
		}
		if err := json.Unmarshal([]byte(page), &report); err != nil {
			return time.Time{}, time.Time{}, fmt.Errorf("read the page of %s: %w", pod.Name, err)
		}
		if report.LastActivity.After(activity) {
			activity = report.LastActivity
		}
		if report.IdleSince.After(clock) {
			clock = report.IdleSince
		}
	}
	return activity, clock, nil
}

// countLikeTheReference counts the sessions that the reference's query shows at its interval, on the primary.
func countLikeTheReference(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) int {
	total := 0
	ticker := time.NewTicker(referenceTick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return total
		case <-ticker.C:
			// Under a name that does not count: the sidecar must not see a session of this one's in place of a client's.
			out, err := kube.Exec(ctx, c.Namespace, c.Status.CurrentPrimary, "postgres",
				"env", "PGAPPNAME=pg_isready", "psql", "-XAtq", "-U", "postgres", "-c",
				// Its own session and the sidecar's are not the clients'.
				referenceQuery+" AND application_name NOT LIKE 'cnpg%'")
			if count, convert := strconv.Atoi(strings.TrimSpace(out)); err == nil && convert == nil {
				total += count
			}
		}
	}
}

// scrape reads the operator's exporter of every instance until the context ends.
func scrape(ctx context.Context, kube *scenario.Kubernetes, pods []corev1.Pod) {
	ticker := time.NewTicker(scrapeEvery)
	defer ticker.Stop()
	for {
		for _, pod := range pods {
			_, _ = kube.Page(ctx, pod.Namespace, pod.Name, "9187", "metrics")
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
