package tests

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// statistic runs a test of many random moments on a borrowed cluster of one instance and on one of three. `make soak` runs it.
func statistic(t *testing.T, test func(s *story, c *cnpgv1.Cluster, random *rand.Rand)) {
	t.Helper()
	if !soaking {
		t.Skip("it takes many tries: make soak")
	}
	t.Parallel()
	random := randomly(t)
	for _, instances := range []int{1, 3} {
		moments := rand.New(rand.NewPCG(random.Uint64(), 0)) // they are to be repeated
		t.Run(strconv.Itoa(instances), func(t *testing.T) {
			t.Parallel()
			s := begin(t)
			c := s.borrow(instances, awake)
			stop := s.scrape(c)
			defer stop()
			test(s, c, moments)
		})
	}
}

// Every session of 1 to 50 ms at a random moment is seen, with and without TLS, on the primary and on standbys.
// SESSIONS is how many there are.
func TestRecall_everyShortSessionIsSeen(t *testing.T) {
	whole(t)
	statistic(t, func(s *story, c *cnpgv1.Cluster, random *rand.Rand) {
		s.awaitReport(c, c.Status.CurrentPrimary, "since when it is idle", func(r report) bool { return !r.IdleSince.IsZero() })
		count, anew := repeats(s.T, "SESSIONS", 20), 0
		for i := range count {
			ended := s.visitsBriefly(c, i, random)
			seen, restarted := s.noticed(c, ended)
			switch {
			case seen:
			case restarted: // a sample failed, and unknown is never idle
				anew++
			default:
				s.Errorf("session %d, which ended at %s, was not seen", i, ended.Format(time.StampMilli))
			}
			pause(s, time.Duration(random.Int64N(int64(800*time.Millisecond))))
		}
		s.Logf("of %d sessions on %d instances %d were not seen, but the idle clock began again after them", count, c.Spec.Instances, anew)
	})
}

// After short sessions with random gaps below the threshold the cluster sleeps on time, counted from the last of them. GAPS is how often.
func TestRecall_everySleepIsOnTime(t *testing.T) {
	whole(t)
	statistic(t, func(s *story, c *cnpgv1.Cluster, random *rand.Rand) {
		s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
		for i := range repeats(s.T, "GAPS", 4) {
			s.visitsBriefly(c, 0, random) // wakes it
			s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
			s.visitsBriefly(c, 0, random) // the cluster may have been idle for the threshold by now
			pause(s, time.Duration(random.Int64N(int64(threshold))))
			ended := s.visitsBriefly(c, i, random)
			s.asleepOnTime(c, ended, time.Now(), threshold)
		}
	})
}

// visitsBriefly opens a session of 1 to 50 ms, with replicas every third one through -ro, and returns a moment just before its end.
func (s *story) visitsBriefly(c *cnpgv1.Cluster, i int, random *rand.Rand) (ended time.Time) {
	s.Helper()
	service, mode := "rw", []string{"disable", "require"}[random.IntN(2)]
	if c.Spec.Instances > 1 && i%3 == 2 {
		service = "ro"
	}
	session := s.connect(fmt.Sprintf("host=%s user=app dbname=app password=%s sslmode=%s", s.address(c, service), s.password(c), mode))
	pause(s, time.Millisecond+time.Duration(random.Int64N(int64(49*time.Millisecond))))
	ended = time.Now()
	s.must(session.Close(s.ctx))
	return ended
}

// noticed reports whether a sidecar of the cluster has seen activity since a session's end and, if none has, whether an idle clock began
// again since then.
func (s *story) noticed(c *cnpgv1.Cluster, ended time.Time) (seen, restarted bool) {
	s.Helper()
	pods := s.instances(c)
	for deadline := time.Now().Add(toSample); !seen && time.Now().Before(deadline); pause(s, pollEvery) {
		for _, pod := range pods {
			page, err := kube.Page(s.ctx, s.namespace, pod.Name, "9189", "activity")
			s.must(err)
			var r report
			s.must(json.Unmarshal([]byte(page), &r))
			seen, restarted = seen || !r.LastActivity.Before(ended), restarted || !r.IdleSince.Before(ended)
		}
	}
	return seen, restarted
}

// Clients that connect at random moments around a hibernation and a wake are served, but for the few that a node still leads to a
// PostgreSQL that shuts down. CYCLES is how often.
func TestHandover_refusesNobodyAtRandomMoments(t *testing.T) {
	whole(t)
	if !soaking {
		t.Skip("how many of many clients are refused is a statistic: make soak")
	}
	t.Parallel()
	s := begin(t)
	random, cycles := randomly(t), repeats(t, "CYCLES", 4)
	c := s.running(kube.NewCluster(s.namespace, "cycled", 1, never))
	s.must(kube.PutBurst(s.ctx, s.namespace, buildStatic(t, "..", "./cmd/burst")))
	order := s.burst(c)
	order.Lasts = 2 * burstLasts
	s.annotate(c, scenario.InactivityMinutes, soon)
	slept, sessions, shutDown := 0, 0, 0
	for range 4 * cycles {
		_, err := kube.AwaitCluster(s.ctx, c, "about to sleep", toSleep, func(c *cnpgv1.Cluster) bool {
			return c.Annotations[scenario.Announced] != "" || scenario.HibernationOn(c)
		})
		s.must(err)
		pause(s, time.Duration(random.Int64N(int64(5*time.Second)))) // the handover takes two to three seconds
		s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
		if scenario.HibernationOn(c) {
			slept++
		}
		report, err := kube.Burst(s.ctx, s.namespace, order)
		s.must(err)
		sessions += report.Sessions
		for _, failure := range report.Failures {
			if failure.Phase == "connect" && strings.Contains(failure.Text, "the database system is shutting down") {
				shutDown++
				continue
			}
			s.Error(failure)
		}
		if slept == cycles {
			break
		}
	}
	s.Logf("%d sessions around %d sleeps; a PostgreSQL that shut down refused %d", sessions, slept, shutDown)
	if slept < cycles || shutDown*often > slept {
		s.Errorf("%d sleeps, want %d; %d sessions were refused by a PostgreSQL that shut down", slept, cycles, shutDown)
	}
}
