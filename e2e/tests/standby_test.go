package tests

import (
	"fmt"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// handoverPhase is a phase of the handover in which it is held, by holding the change of the next step.
type handoverPhase struct {
	name string
	held func() func(scenario.Change) bool
}

// beforeTheLastLook returns the phases followed by another sample of each instance. In each, a held request to the API server
// stops the sidecar.
func beforeTheLastLook() []handoverPhase {
	return []handoverPhase{
		{"announced, about to be acknowledged", func() func(scenario.Change) bool { return acknowledges }},
		{"acknowledged, about to suspend", func() func(scenario.Change) bool { return suspends(1) }},
		{"suspended, about to look", func() func(scenario.Change) bool { return suspends(2) }},
	}
}

// A session opened on a standby before the last sample keeps the cluster awake, in whatever phase of the handover and by
// whatever route it was opened; once it has ended the cluster sleeps. HANDOVERS is how often each phase is tried, each time by another
// route.
func TestHandover_aSessionOnAStandbyWins(t *testing.T) {
	whole(t)
	t.Parallel()
	rounds := repeats(t, "HANDOVERS", 1)
	s := begin(t)
	interceptor := s.intercept() // the API server learns of it while the cluster is made
	c := s.running(kube.NewCluster(s.namespace, "read", 2, never))
	for _, schedule := range []string{"first", "second"} {
		s.must(kube.Create(s.ctx, scenario.NewScheduledBackup(c, schedule, "0 0 0 1 1 *")))
	}
	s.must(kube.AwaitReachable(s.ctx, c, "ro", toSettle))
	tried, slept, won := 0, 0, map[string]int{}
	round := func(phase handoverPhase, service, route string) {
		tried++
		switch s.over(c, interceptor, phase, service) {
		case handedOver:
			t.Errorf("%s, %s: put to sleep over a session that was open before the last look", phase.name, route)
			slept++
			s.annotate(c, scenario.InactivityMinutes, never)
			s.wakeAnyhow(c)
		case sessionWon:
			won[phase.name]++
		case openedLate:
		}
	}
	routes := []struct{ name, service string }{{"over -ro", "ro"}, {"over -r", "r"}, {"by address", ""}}
	for shift := range rounds {
		for i, phase := range beforeTheLastLook() {
			route := routes[(i+shift)%len(routes)]
			round(phase, route.service, route.name)
		}
	}
	for _, phase := range beforeTheLastLook() {
		for range lateRounds {
			if won[phase.name] == 0 {
				round(phase, "ro", "over -ro")
			}
		}
		if won[phase.name] == 0 {
			t.Errorf("%s: in no round was the session open within %s, which shows nothing", phase.name, attemptWaits)
		}
	}
	t.Logf("put to sleep over %d of %d sessions; those that kept it awake: %v", slept, tried, won)
	s.afterTheLastLook(c, interceptor)
	s.sleeps(c)
}

const (
	// attemptWaits is less than the five seconds after which the sidecar gives up a request that is held, and with it the attempt to sleep.
	attemptWaits = 4 * time.Second
	// lateRounds is how often a phase is tried again if a busy machine opened its sessions later than that.
	lateRounds = 5
)

// outcome is what came of an attempt to sleep over a session.
type outcome int

const (
	// openedLate: the attempt may have ended for another reason, because the session was opened late.
	openedLate outcome = iota
	// sessionWon: the attempt ended because another instance was in use.
	sessionWon
	// handedOver: the cluster was put to sleep.
	handedOver
)

// over opens a session on a standby in a phase of the handover, and returns what came of the handover.
func (s *story) over(c *cnpgv1.Cluster, interceptor *scenario.Interceptor, phase handoverPhase, service string) outcome {
	s.Helper()
	s.notAnnounced(c)
	settings := s.standbySettings(c, service)
	held, release := interceptor.Hold(phase.held())
	defer release()
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.held(held)
	began := time.Now()
	session := s.connect(settings)
	defer func() { _ = session.Close(s.ctx) }()
	connected := time.Since(began)
	reason, standby := "active", false // -r leads to the primary too
	s.must(session.QueryRow(s.ctx, "select pg_is_in_recovery()").Scan(&standby))
	if standby {
		reason = "sibling_active"
	}
	defer s.annotate(c, scenario.InactivityMinutes, never) // or the next attempt might get past what the next phase holds
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	if scenario.HibernationOn(c) {
		s.Fatalf("%s: the session was opened too late", phase.name)
	}
	release()
	inTime := time.Since(began) < attemptWaits
	if s.decided(c) {
		return handedOver
	}
	if !inTime {
		s.Logf("%s: the session was opened later than %s after the hold: to connect through %q took %s", phase.name, attemptWaits, service, connected)
		return openedLate
	}
	s.logs(c.Status.CurrentPrimary, began, "the cluster is not put to sleep after all", `"reason":"`+reason+`"`)
	return sessionWon
}

// standbySettings are those of a session through a Service or, if none is named, by the address of a standby's pod.
func (s *story) standbySettings(c *cnpgv1.Cluster, service string) string {
	s.Helper()
	var standby corev1.Pod
	s.must(kube.Get(s.ctx, client.ObjectKey{Namespace: c.Namespace, Name: replicaOf(c)}, &standby))
	address := standby.Status.PodIP
	if service != "" {
		address = s.address(c, service)
	}
	return fmt.Sprintf("host=%s user=app dbname=app password=%s sslmode=require", address, s.password(c))
}

// connect opens a session from this process: a client in a pod is started by exec, which may take longer than the sidecar waits.
func (s *story) connect(settings string) *pgx.Conn {
	s.Helper()
	session, err := pgx.Connect(s.ctx, settings)
	s.must(err)
	return session
}

// toTakeBack is longer than the 15 s in which the sidecar may take hibernation back.
const toTakeBack = 20 * time.Second

// afterTheLastLook opens a session by a standby's address while hibernation is being turned on, and logs the outcome: such a
// session is not promised to prevent sleep, but to be served until it ends.
func (s *story) afterTheLastLook(c *cnpgv1.Cluster, interceptor *scenario.Interceptor) {
	s.Helper()
	s.notAnnounced(c)
	settings := s.standbySettings(c, "")
	held, release := interceptor.Hold(turnsHibernationOn)
	defer release()
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.held(held)
	session := s.connect(settings)
	release()
	slept := s.decided(c)
	if slept {
		_, err := kube.AwaitCluster(s.ctx, c, "taken back", toTakeBack, func(c *cnpgv1.Cluster) bool { return !scenario.HibernationOn(c) })
		slept = err != nil
	}
	s.Logf("a session that began after the last look: stayed asleep %t", slept)
	if _, err := session.Exec(s.ctx, "select 1"); err != nil {
		s.Errorf("the session that began after the last look was ended: %v", err)
	}
	_ = session.Close(s.ctx)
	s.annotate(c, scenario.InactivityMinutes, never)
	if slept {
		s.wakeAnyhow(c)
	}
}

// wakeAnyhow wakes a cluster that may still be shutting down, or that a slow sidecar has woken after all.
func (s *story) wakeAnyhow(c *cnpgv1.Cluster) {
	s.Helper()
	_, err := kube.AwaitCluster(s.ctx, c, "hibernated", 2*toHibernate+toSettle, func(c *cnpgv1.Cluster) bool { // a session may hold it up
		return scenario.Hibernated(c) || !scenario.HibernationOn(c)
	})
	s.must(err)
	s.wake(c)
	s.must(kube.AwaitReachable(s.ctx, c, "ro", toSettle))
	for _, name := range []string{"first", "second"} {
		schedule := &cnpgv1.ScheduledBackup{}
		schedule.Namespace, schedule.Name = c.Namespace, name
		s.resumed(schedule)
	}
}
