package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// stormLasts is how long each storm is measured.
const stormLasts = 10 * time.Second

var errNoWorker = errors.New("the worker's process cannot be seen from here")

// workerOf is the process of the sidecar's worker in a cluster's primary.
func workerOf(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) (int, error) {
	pod, err := primaryOf(ctx, kube, c)
	if err != nil {
		return 0, err
	}
	found := scenario.Processes(func(cmdline []string) bool { return len(cmdline) > 1 && cmdline[1] == "worker" }, string(pod.UID))
	if len(found) != 1 {
		return 0, errNoWorker
	}
	return found[0], nil
}

// samples is how often the sidecar has sampled PostgreSQL, from its metrics page.
func samples(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) (float64, error) {
	const name = "cnpg_scale_to_zero_samples_total"
	page, err := kube.Page(ctx, c.Namespace, c.Status.CurrentPrimary, "9189", "metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(page) {
		if rest, found := strings.CutPrefix(line, name+"{"); found {
			fields := strings.Fields(rest)
			return strconv.ParseFloat(fields[len(fields)-1], 64)
		}
	}
	return 0, fmt.Errorf("the page has no %s", name)
}

// storms measures what the worker costs under bare connects and under logins.
func storms(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) error {
	worker, err := workerOf(ctx, kube, c)
	if err != nil {
		fmt.Println("storms:", err)
		return nil
	}
	d, err := databaseOf(ctx, kube, c)
	if err != nil {
		return err
	}
	pod, err := primaryOf(ctx, kube, c)
	if err != nil {
		return err
	}
	fmt.Println("\n| storm | offered a second | accepted a second | samples a second | worker, % of a core |\n|---|---|---|---|---|")
	for _, storm := range []struct {
		what string
		rage func(context.Context) (offered, accepted int64)
	}{
		{"bare TCP connects", func(ctx context.Context) (int64, int64) {
			return flood(ctx, net.JoinHostPort(pod.Status.PodIP, "5432"))
		}},
		{"logins without TLS", func(ctx context.Context) (int64, int64) {
			done := repeat(ctx, 4, stormLasts, func(ctx context.Context) error {
				conn, err := d.connect(ctx, "disable")
				if err == nil {
					err = conn.Close(ctx)
				}
				return err
			})
			return done, done
		}},
	} {
		earlier, err := samples(ctx, kube, c)
		if err != nil {
			return err
		}
		before, err := scenario.ProcessorTime(worker)
		if err != nil {
			return err
		}
		offered, accepted := storm.rage(ctx)
		after, err := scenario.ProcessorTime(worker)
		if err != nil {
			return err
		}
		later, err := samples(ctx, kube, c)
		if err != nil {
			return err
		}
		seconds := stormLasts.Seconds()
		fmt.Printf("| %s | %.0f | %.0f | %.2f | %.2f |\n", storm.what, float64(offered)/seconds, float64(accepted)/seconds, (later-earlier)/seconds,
			100*(after-before).Seconds()/seconds)
	}
	return nil
}

const (
	// floodRate is how many connects a second are offered.
	floodRate = 5000
	// floodPatience is how long one waits to be accepted: less than until its first packet is sent again, because a server whose
	// queue is full takes no notice of it.
	floodPatience = 900 * time.Millisecond
)

// flood offers connects at their own pace, whether or not those before have been accepted: PostgreSQL forks a process for each,
// and one that waits for it would offer no more than it takes. It goes to the pod itself, past the Service's address translation.
func flood(ctx context.Context, address string) (offered, accepted int64) {
	dialer := net.Dialer{Timeout: floodPatience, KeepAlive: -1}
	var taken atomic.Int64
	var group sync.WaitGroup
	for start := time.Now(); time.Since(start) < stormLasts && ctx.Err() == nil; _ = scenario.Rest(ctx, time.Millisecond) {
		for ; offered < int64(time.Since(start).Seconds()*floodRate); offered++ {
			group.Go(func() {
				if conn, err := dialer.DialContext(ctx, "tcp", address); err == nil {
					taken.Add(1)
					_ = conn.Close()
				}
			})
		}
	}
	group.Wait()
	return offered, taken.Load()
}

// repeat does something in parallel, again and again, and returns how often it succeeded.
func repeat(ctx context.Context, parallel int, lasts time.Duration, once func(context.Context) error) int64 {
	ctx, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	var done atomic.Int64
	var group sync.WaitGroup
	for range parallel {
		group.Go(func() {
			for ctx.Err() == nil {
				if once(ctx) == nil {
					done.Add(1)
				}
			}
		})
	}
	group.Wait()
	return done.Load()
}

// quiet watches an idle cluster: how many samples its sidecar takes, and whether anything is written to the Cluster.
func quiet(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster, lasts time.Duration) error {
	if err := kube.Get(ctx, client.ObjectKeyFromObject(c), c); err != nil {
		return fmt.Errorf("read the Cluster: %w", err)
	}
	version := c.ResourceVersion
	earlier, err := samples(ctx, kube, c)
	if err != nil {
		return err
	}
	_ = scenario.Rest(ctx, lasts)
	later, err := samples(ctx, kube, c)
	if err != nil {
		return err
	}
	if err := kube.Get(ctx, client.ObjectKeyFromObject(c), c); err != nil {
		return fmt.Errorf("read the Cluster: %w", err)
	}
	fmt.Printf("\nidle for %s: %.1f queries a minute; the Cluster was written to: %t\n", lasts, (later-earlier)/lasts.Minutes(), c.ResourceVersion != version)
	return nil
}

// pgbench compares transactions a second over the Unix socket, where nothing but the sidecar makes a difference.
func pgbench(ctx context.Context, kube *scenario.Kubernetes, with, without *cnpgv1.Cluster, runs int) error {
	run := func(c *cnpgv1.Cluster, arguments string) (string, error) {
		return kube.Exec(ctx, c.Namespace, c.Status.CurrentPrimary, "postgres", "bash", "-c", pgbenchProgram+" -U postgres "+arguments+" postgres 2>/dev/null")
	}
	fmt.Println("\n| pgbench, transactions a second | with | without | ratio |\n|---|---|---|---|")
	return rates(with, without, runs, run)
}

// pgbenchProgram is where PostgreSQL's packages put it.
const pgbenchProgram = "$(ls -d /usr/lib/postgresql/*/bin | tail -1)/pgbench"

// rates has pgbench run against both clusters in turn, once its tables are there, and prints the medians and their ratio.
func rates(with, without *cnpgv1.Cluster, runs int, run func(c *cnpgv1.Cluster, arguments string) (string, error)) error {
	for _, c := range []*cnpgv1.Cluster{with, without} {
		if _, err := run(c, "-i -s 5 -q"); err != nil {
			return err
		}
	}
	for _, kind := range []struct{ what, arguments string }{{"select-only", "-S -c 4 -T 8"}, {"tpcb-like", "-c 4 -T 8"}} {
		served := map[*cnpgv1.Cluster][]float64{}
		for i := range 2 * runs {
			c := []*cnpgv1.Cluster{with, without}[(i+i/2)%2] // who goes first takes turns: machines get warm, and caches full
			out, err := run(c, kind.arguments)
			if err != nil {
				return err
			}
			tps, err := transactionsPerSecond(out)
			if err != nil {
				return err
			}
			served[c] = append(served[c], tps)
		}
		a, b := median(served[with]), median(served[without])
		fmt.Printf("| %s (median of %d) | %.0f | %.0f | %.3f |\n", kind.what, runs, a, b, a/b)
	}
	return nil
}

func transactionsPerSecond(out string) (float64, error) {
	for line := range strings.Lines(out) {
		if rest, found := strings.CutPrefix(line, "tps = "); found {
			return strconv.ParseFloat(strings.Fields(rest)[0], 64)
		}
	}
	return 0, fmt.Errorf("pgbench says no tps: %s", out)
}

// pooled compares a hibernation with fifty idle connections, of which none counts, with one without any.
func pooled(ctx context.Context, kube *scenario.Kubernetes, namespace string, runs int) error {
	c := kube.NewCluster(namespace, "pooled", 1, never)
	c.Annotations[scenario.Activity] = "queries"
	if err := begin(ctx, kube, c); err != nil {
		return err
	}
	times := map[int][]time.Duration{}
	for range runs {
		for _, connections := range []int{50, 0} {
			took, err := sleepWith(ctx, kube, c, connections)
			if err != nil {
				return err
			}
			times[connections] = append(times[connections], took)
		}
	}
	a, b := median(times[50]), median(times[0])
	fmt.Printf("\nhibernation with 50 idle connections, activity=queries: %.2f s, without: %.2f s (medians of %d), ratio %.2f\n",
		a.Seconds(), b.Seconds(), runs, a.Seconds()/b.Seconds())
	return kube.Delete(ctx, c)
}

// sleepWith lets the sidecar put the cluster to sleep while connections rest, and returns how long it took from hibernation.
func sleepWith(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster, connections int) (time.Duration, error) {
	d, err := databaseOf(ctx, kube, c)
	if err != nil {
		return 0, err
	}
	if err := d.reachable(ctx); err != nil {
		return 0, err
	}
	var open []*pgx.Conn
	for range connections {
		conn, err := d.connect(ctx, "disable")
		if err != nil {
			return 0, err
		}
		open = append(open, conn)
	}
	soon, later := "0.1", never
	if err := kube.Annotate(ctx, c, scenario.InactivityMinutes, &soon); err != nil {
		return 0, err
	}
	on, err := kube.AwaitCluster(ctx, c, "put to sleep", time.Minute, scenario.HibernationOn)
	if err != nil {
		return 0, err
	}
	asleep, err := kube.AwaitCluster(ctx, c, "hibernated", 5*time.Minute, scenario.Hibernated)
	if err != nil {
		return 0, err
	}
	for _, conn := range open {
		_ = conn.PgConn().Conn().Close()
	}
	if err := kube.Annotate(ctx, c, scenario.InactivityMinutes, &later); err != nil {
		return 0, err
	}
	if err := kube.Wake(ctx, c); err != nil {
		return 0, err
	}
	if err := kube.AwaitHealthy(ctx, c, toHealthy); err != nil {
		return 0, err
	}
	return asleep.Sub(on), nil
}
