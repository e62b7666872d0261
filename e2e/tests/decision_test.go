package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// report is a sidecar's /activity report.
type report struct {
	Known        bool      `json:"known"`
	Active       bool      `json:"active"`
	Reason       string    `json:"reason"`
	Blockers     []string  `json:"blockers"`
	Events       bool      `json:"events"`
	IdleSince    time.Time `json:"idleSince"`
	SampledAt    time.Time `json:"sampledAt"`
	LastActivity time.Time `json:"lastActivity"`
	LastUnseen   string    `json:"lastUnseenClient"`
}

// awaitReport reads a sidecar's report until it satisfies as. The cluster must stay awake meanwhile.
func (s *story) awaitReport(c *cnpgv1.Cluster, pod, what string, within time.Duration, as func(report) bool) report {
	s.Helper()
	deadline := time.Now().Add(within)
	for {
		var seen report
		page, err := kube.Page(s.ctx, s.namespace, pod, "9189", "activity")
		if err == nil {
			s.must(json.Unmarshal([]byte(page), &seen))
			if as(seen) {
				return seen
			}
		}
		if time.Now().After(deadline) {
			s.Fatalf("the sidecar of %s does not say %s within %s: %s (%v)", pod, what, within, page, err)
		}
		if s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c)); scenario.SwitchedOn(c) {
			s.Fatalf("the cluster was put to sleep before the sidecar said %s", what)
		}
	}
}

// blockedBy waits until exactly these reasons keep the cluster awake.
func (s *story) blockedBy(c *cnpgv1.Cluster, within time.Duration, reasons ...string) {
	s.Helper()
	slices.Sort(reasons)
	s.awaitReport(c, c.Status.CurrentPrimary, fmt.Sprint(reasons), within, func(r report) bool {
		slices.Sort(r.Blockers)
		return slices.Equal(r.Blockers, reasons)
	})
}

// asSuperuser runs statements in a database over the primary's socket.
func (s *story) asSuperuser(c *cnpgv1.Cluster, database, statements string) {
	s.Helper()
	_, err := kube.Exec(s.ctx, s.namespace, c.Status.CurrentPrimary, "postgres",
		"psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database, "-c", statements)
	s.must(err)
}

// Sessions of a few milliseconds between two samples, with and without TLS, count.
func TestShortSessionsKeepAwake(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "brief", 1, never))
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	var before, after time.Time
	for i := range 6 { // each two thirds of a threshold after the previous one
		before = time.Now()
		session, err := kube.OpenAs(s.ctx, c, "rw", []string{"", "sslmode=disable"}[i%2])
		s.must(err)
		_, after = session.Close()
		s.awake(c, threshold*2/3, "a session two thirds of the threshold ago")
	}
	page := s.metrics(c.Status.CurrentPrimary)
	if !strings.Contains(page, `cnpg_scale_to_zero_socket_events_supported{cluster="brief"} 1`) {
		t.Errorf("the kernel's reports are not received:\n%s", page)
	}
	s.asleepOnTime(c, before, after, threshold)
}

// Connections that are not clients do not count: the exporter, the operator's probes, standbys, bare connects and a lone
// SSLRequest. A client that reads through -ro does.
func TestOnlyUseCounts(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "probed", 3, never))
	const minutes, threshold = "0.5", 30 * time.Second
	defer s.scrape(c)()
	session := s.open(c, "ro")
	s.annotate(c, scenario.InactivityMinutes, minutes)
	s.awake(c, threshold+toAct, "a client that reads through -ro")
	before, after := session.Close()

	probing := make(chan error, 1)
	go func() {
		_, err := kube.Client(s.ctx, s.namespace, `end=$((SECONDS+60))
while [ $SECONDS -lt $end ]; do
	exec 3<>/dev/tcp/probed-rw/5432
	printf '\x00\x00\x00\x08\x04\xd2\x16\x2f' >&3; read -r -t 1 -N 1 <&3
	: </dev/tcp/probed-rw/5432
	sleep 2
done 2>/dev/null`)
		probing <- err
	}()
	s.asleepOnTime(c, before, after, threshold)
	<-probing
}

// scrape scrapes the operator's exporters like Prometheus until stopped.
func (s *story) scrape(c *cnpgv1.Cluster) (stop func()) {
	s.Helper()
	ctx, stop := context.WithCancel(s.ctx)
	instances := s.instances(c)
	go func() {
		ticker := time.NewTicker(5 * time.Second)
		defer ticker.Stop()
		for {
			for _, pod := range instances {
				_, _ = kube.Page(ctx, s.namespace, pod.Name, "9187", "metrics") // the pods fall asleep meanwhile
			}
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	}()
	return stop
}

// With queries, a pool's idle connections neither keep the cluster awake nor delay its shutdown. With ignore, the named
// sessions do neither, whatever they do.
func TestSessionsThatDoNotCount(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "pooled", 1, never))
	s.annotate(c, scenario.Activity, "queries")
	var pool []*scenario.Session
	for range 10 {
		pool = append(pool, s.open(c, "rw"))
	}
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	before := time.Now()
	s.must(pool[3].Run("select 1"))
	after := time.Now()
	s.asleepOnTime(c, before, after, threshold) // otherwise the shutdown would wait for three minutes
	for _, session := range pool {
		session.Close()
	}
	s.annotate(c, scenario.InactivityMinutes, never)
	s.annotate(c, scenario.Activity, "connections")
	s.annotate(c, scenario.Ignore, "user=app application=health*")
	s.wake(c)
	ignored, err := kube.OpenAs(s.ctx, c, "rw", "application_name=health-check")
	s.must(err)
	s.must(ignored.Send("select pg_sleep(600)"))
	counted := s.open(c, "rw")
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.awake(c, threshold+toAct, "a session that is not ignored")
	before, after = counted.Close()
	s.asleepOnTime(c, before, after, threshold)
	ignored.Close()
}

// All blockers are reported at once, and when they are gone the cluster sleeps.
func TestBlockers(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := kube.NewCluster(s.namespace, "blocked", 1, never)
	c.Spec.PostgresConfiguration.Parameters = map[string]string{"max_prepared_transactions": "5"}
	s.running(c)
	s.annotate(c, scenario.Activity, "queries")
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)

	s.asSuperuser(c, "app", "begin; create table kept (i int); prepare transaction 'two-phase'")
	locker := s.open(c, "rw")
	s.must(locker.Run("select pg_advisory_lock(1)"))
	window := time.Now().UTC().Add(-time.Hour).Format("Mon 15:04") + "-" + time.Now().UTC().Add(time.Hour).Format("15:04") + " UTC"
	s.annotate(c, scenario.KeepAwake, window)
	s.annotate(c, scenario.KeepAwakeUntil, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	s.annotate(c, "cnpg.io/reconciliationLoop", "disabled")
	s.blockedBy(c, time.Minute, "prepared_transaction", "advisory_lock", "keep_awake_window", "keep_awake_until", "reconciliation_disabled")
	for _, key := range []string{scenario.KeepAwake, scenario.KeepAwakeUntil, "cnpg.io/reconciliationLoop"} {
		s.must(kube.Annotate(s.ctx, c, key, nil))
	}
	s.blockedBy(c, time.Minute, "prepared_transaction", "advisory_lock")

	reader, err := kube.OpenLocalAs(s.ctx, s.namespace, c.Status.CurrentPrimary, "dbname=app replication=database application_name=subscriber")
	s.must(err)
	s.asSuperuser(c, "app", "notify scale_to_zero") // triggers a sample
	s.annotate(c, "looked-at", "now")
	s.blockedBy(c, time.Minute, "advisory_lock", "prepared_transaction", "replication_client")
	reader.Close()

	text, err := kube.Exec(s.ctx, s.namespace, c.Status.CurrentPrimary, scenario.SidecarContainer, "/sidecar", "explain")
	s.must(err)
	for _, part := range []string{"activity=queries counts it only up to its last statement", "(prepared_transaction)", "(advisory_lock)", "COUNTS"} {
		if !strings.Contains(text, part) {
			t.Errorf("explain does not say %q:\n%s", part, text)
		}
	}
	s.asSuperuser(c, "app", "rollback prepared 'two-phase'")
	locker.Close()
	at, err := kube.AwaitCluster(s.ctx, c, "asleep once nothing blocks", 2*time.Minute, scenario.SwitchedOn)
	s.must(err)
	s.hibernated(c, at)
}

// The control channel, through the SQL functions.
func TestControlChannel(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "told", 1, never))
	functions, err := os.ReadFile("../../sql/functions.sql")
	s.must(err)
	s.asSuperuser(c, "app", string(functions))
	s.listens(c)
	call := func(statement string) {
		s.Helper()
		_, err := kube.Query(s.ctx, c, "rw", statement)
		s.must(err)
	}
	until := func(c *cnpgv1.Cluster) bool { return c.Annotations[scenario.KeepAwakeUntil] != "" }

	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	call("select scale_to_zero.keep_awake('1 hour')")
	_, err = kube.AwaitCluster(s.ctx, c, "kept awake", 10*time.Second, until)
	s.must(err)
	if at, err := time.Parse(time.RFC3339, c.Annotations[scenario.KeepAwakeUntil]); err != nil || time.Until(at).Round(time.Minute) != time.Hour {
		t.Errorf("kept awake until %q (%v)", c.Annotations[scenario.KeepAwakeUntil], err)
	}
	s.awake(c, threshold+toAct, "keep-awake")
	before := time.Now()
	call("select scale_to_zero.release()")
	after := time.Now()
	s.asleepOnTime(c, before, after, threshold)

	s.annotate(c, scenario.InactivityMinutes, "0.5") // this is also its minimum time awake
	s.wake(c)
	s.annotate(c, scenario.InactivityMinutes, never)
	s.awaitMetric(c.Status.CurrentPrimary, `listener_connected{cluster="told"} 1`, 30*time.Second)
	call("notify scale_to_zero, 'go to sleep'")
	s.awaitMetric(c.Status.CurrentPrimary, `notifications_total{cluster="told",kind="malformed"} 1`, 10*time.Second)
	s.awaitReport(c, c.Status.CurrentPrimary, "idle", time.Minute, func(r report) bool { return r.Reason == "waiting" })
	call("select scale_to_zero.hibernate()")
	s.awaitReport(c, c.Status.CurrentPrimary, "that it has not been up for long enough", 10*time.Second, func(r report) bool { return r.Reason == "minimum_uptime" })
	s.annotate(c, scenario.InactivityMinutes, "0.75")
	at, err := kube.AwaitCluster(s.ctx, c, "asleep on request", 2*time.Minute, scenario.SwitchedOn)
	s.must(err)
	s.hibernated(c, at)
}

// While the operator is away the switch is withdrawn: otherwise it would delete the primary whenever it returns.
func TestSwitchIsWithdrawn(t *testing.T) {
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "withdrawn", 2, never))
	s.webhooksFail(admissionv1.Ignore) // otherwise nobody can change a Cluster without the operator, including us
	t.Cleanup(func() { s.ctx = cleanup(t); s.webhooksFail(admissionv1.Fail) })
	s.scaleOperator(0)
	t.Cleanup(func() { s.ctx = cleanup(t); s.scaleOperator(1) })
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	on, err := kube.AwaitCluster(s.ctx, c, "asked to sleep", time.Minute, scenario.SwitchedOn)
	s.must(err)
	off, err := kube.AwaitCluster(s.ctx, c, "taken back", time.Minute, func(c *cnpgv1.Cluster) bool { return !scenario.SwitchedOn(c) })
	s.must(err)
	t.Logf("taken back %.1fs after the switch", off.Sub(on).Seconds())
	if took := off.Sub(on); took < 14*time.Second || took > 15*time.Second+toSettle {
		t.Errorf("taken back after %s, want 15s", took)
	}
	if _, err := kube.AwaitEvent(s.ctx, c, "SleepWithdrawn", toSettle); err != nil {
		t.Error(err)
	}
	_, err = kube.AwaitCluster(s.ctx, c, "asked to sleep again", time.Minute, scenario.SwitchedOn)
	s.must(err)
	session := s.open(c, "rw")
	came := time.Now()
	off, err = kube.AwaitCluster(s.ctx, c, "taken back for a client", time.Minute, func(c *cnpgv1.Cluster) bool { return !scenario.SwitchedOn(c) })
	s.must(err)
	t.Logf("taken back %.1fs after a client came", off.Sub(came).Seconds())
	if took := off.Sub(came); took > 10*time.Second { // the sidecar withdraws it after 15 s anyway
		t.Errorf("taken back %s after a client came", took)
	}
	s.must(session.Run("select 1"))
	session.Close()
}

// webhooksFail sets the failure policy of the operator's webhooks.
func (s *story) webhooksFail(policy admissionv1.FailurePolicyType) {
	s.Helper()
	mutating := &admissionv1.MutatingWebhookConfiguration{}
	s.must(kube.Get(s.ctx, client.ObjectKey{Name: "cnpg-mutating-webhook-configuration"}, mutating))
	changed := mutating.DeepCopy()
	for i := range changed.Webhooks {
		changed.Webhooks[i].FailurePolicy = &policy
	}
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(mutating)))
	validating := &admissionv1.ValidatingWebhookConfiguration{}
	s.must(kube.Get(s.ctx, client.ObjectKey{Name: "cnpg-validating-webhook-configuration"}, validating))
	weakened := validating.DeepCopy()
	for i := range weakened.Webhooks {
		weakened.Webhooks[i].FailurePolicy = &policy
	}
	s.must(kube.Patch(s.ctx, weakened, client.MergeFrom(validating)))
	if policy == admissionv1.Fail { // only now can it be seen whether they answer
		s.awaitOperator()
	}
}
