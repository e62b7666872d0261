package tests

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// burstLasts is for how long clients connect around a doze, and burstOutlasts for how long some of them do, until the gateway
	// has withdrawn after the wake.
	burstLasts    = 4 * time.Second
	burstOutlasts = 24 * time.Second
	// wayDown is longer than the time from a doze's announcement to its fence, stopTakes longer than that from the fence to PostgreSQL's
	// stop.
	wayDown   = 8 * time.Second
	stopTakes = 2 * time.Second
	// toBeServed is after how long a client that was not served is taken to hang.
	toBeServed = 3 * time.Minute
)

// Clients connect at random moments around the announcement of a doze, the doze itself and the wake: nobody is refused, and
// nobody's transaction is cut. DOZES is how often.
func TestDoze_refusesAndCutsNobody(t *testing.T) {
	whole(t)
	t.Parallel()
	dozes := repeats(t, "DOZES", 4)
	side := max(1, dozes/16) // clusters side by side: a doze is more than a minute after the one before
	rounds := (dozes + side - 1) / side
	program := buildStatic(t, "..", "./cmd/burst")
	random := randomly(t)
	var all bursts
	t.Cleanup(func() { t.Log(all.String()) })
	for i := range side {
		moments := rand.New(rand.NewPCG(random.Uint64(), 0)) // they are to be repeated
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			s := begin(t)
			c := s.dozingCluster("visited")
			s.must(kube.PutBurst(s.ctx, s.namespace, program))
			order, before, committed := s.burst(c), s.instances(c)[0], 0
			for round := range rounds {
				report, woke := s.visitedAroundADoze(c, order, (i+round)%2 == 0, moments)
				all.add(report, woke)
				committed += report.Committed
			}
			answer, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, "select count(*) from visited")
			s.must(err)
			if answer != strconv.Itoa(committed) {
				t.Errorf("%d rows were committed, and there are %s", committed, answer)
			}
			if now := s.instances(c); len(now) != 1 || now[0].UID != before.UID || restarts(now[0]) != restarts(before) {
				t.Error("the pod was replaced, or a container restarted")
			}
		})
	}
}

// bursts are the sessions of several dozes.
type bursts struct {
	mutex                         sync.Mutex
	dozes, woke, sessions, failed int
	slowest                       time.Duration
}

func (b *bursts) add(report scenario.BurstReport, woke bool) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.dozes++
	if woke {
		b.woke++
	}
	b.sessions += report.Sessions
	b.failed += len(report.Failures)
	b.slowest = max(b.slowest, report.Slowest)
}

// String sums up.
func (b *bursts) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return fmt.Sprintf("%d dozes: clients ended %d of them, and prevented %d before the fence; of %d sessions %d failed, the slowest took %.2fs",
		b.dozes, b.woke, b.dozes-b.woke, b.sessions, b.failed, b.slowest.Seconds())
}

// burst makes a table for the cluster's clients, and returns what they do.
func (s *story) burst(c *cnpgv1.Cluster) scenario.Burst {
	s.Helper()
	s.trust(c)
	_, err := kube.Query(s.ctx, c, "rw", "create table visited (at text)")
	s.must(err)
	order := scenario.Burst{Table: "visited", Patience: toBeServed}
	for _, service := range []string{"rw", "r"} {
		for _, mode := range []string{"disable", "verify-full"} {
			order.Targets = append(order.Targets, scenario.Target{
				Name:     "-" + service + " with sslmode=" + mode,
				Settings: fmt.Sprintf("host=%s-%s user=app dbname=app password=%s sslmode=%s sslrootcert=/tmp/%s.crt", c.Name, service, s.password(c), mode, c.Name),
			})
		}
	}
	return order
}

// visitedAroundADoze has clients connect from a random moment on after the announcement of a doze, most of whom prevent it, or
// after the fence, and reports whether they woke the cluster.
func (s *story) visitedAroundADoze(c *cnpgv1.Cluster, order scenario.Burst, late bool, random *rand.Rand) (report scenario.BurstReport, woke bool) {
	s.Helper()
	_, err := kube.AwaitCluster(s.ctx, c, "awake", toSettle, func(c *cnpgv1.Cluster) bool {
		return c.Annotations[scenario.Announced] == "" && c.Annotations[scenario.Fence] == ""
	})
	s.must(err)
	wake := c.Annotations[scenario.LastWake]
	begun, within := announcesDoze, wayDown
	if late {
		begun, within = fenced, stopTakes
	}
	at, err := kube.AwaitCluster(s.ctx, c, "about to doze", toDoze, begun)
	s.must(err)
	delay := time.Duration(random.Int64N(int64(within)))
	pause(s, delay)
	if order.Lasts = burstLasts; random.IntN(3) == 0 {
		order.Lasts = burstOutlasts
	}
	report, err = kube.Burst(s.ctx, s.namespace, order)
	s.must(err)
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	woke = c.Annotations[scenario.LastWake] != wake
	s.Logf("fenced %t at %s, visited %.2fs later, which woke it: %t; %d sessions, the slowest took %.2fs",
		late, at.Format(time.StampMilli), delay.Seconds(), woke, report.Sessions, report.Slowest.Seconds())
	for _, failure := range report.Failures {
		s.Error(failure)
	}
	return report, woke
}

// announcesDoze reports whether a doze has been announced.
func announcesDoze(c *cnpgv1.Cluster) bool {
	return strings.HasSuffix(c.Annotations[scenario.Announced], " doze")
}
