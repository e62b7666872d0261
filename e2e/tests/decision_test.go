package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	Unused       bool      `json:"unused"`
	Due          time.Time `json:"due"`
	LastUnseen   string    `json:"lastUnseenClient"`
	WhatIf       struct {
		Own struct {
			Count int       `json:"count"`
			Since time.Time `json:"since"`
		} `json:"own"`
	} `json:"whatIf"`
}

// awaitReport reads a sidecar's report until it satisfies as. The cluster must stay awake meanwhile.
func (s *story) awaitReport(c *cnpgv1.Cluster, pod, what string, as func(report) bool) report {
	s.Helper()
	for deadline := time.Now().Add(toSample); ; pause(s, pollEvery) {
		var seen report
		page, err := kube.Page(s.ctx, s.namespace, pod, "9189", "activity")
		if err == nil {
			s.must(json.Unmarshal([]byte(page), &seen))
			if as(seen) {
				return seen
			}
		}
		if time.Now().After(deadline) {
			s.Fatalf("the sidecar of %s does not say %s within %s: %s (%v)", pod, what, toSample, page, err)
		}
		if s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c)); scenario.HibernationOn(c) {
			s.Fatalf("the cluster was put to sleep before the sidecar said %s", what)
		}
	}
}

// blockedBy waits until exactly these reasons keep the cluster awake, and has the sidecar sample again and again meanwhile.
func (s *story) blockedBy(c *cnpgv1.Cluster, reasons ...string) {
	s.Helper()
	defer s.looking(c, 2*time.Second)()
	slices.Sort(reasons)
	s.awaitReport(c, c.Status.CurrentPrimary, fmt.Sprint(reasons), func(r report) bool {
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
	c := s.borrow(1, awake)
	before, after := s.shortSessions(c, "sslmode=require", "sslmode=disable", "sslmode=require", "sslmode=disable")
	page := s.metrics(c.Status.CurrentPrimary)
	if !strings.Contains(page, `cnpg_scale_to_zero_socket_events_supported{cluster="`+c.Name+`"} 1`) {
		t.Errorf("the kernel's reports are not received:\n%s", page)
	}
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.asleepOnTime(c, before, after, threshold)
}

// shortSessions opens a session of a few milliseconds with each of the settings, checks that each begins the idle clock again, by a
// report of the kernel's, and returns the times between which the last one ended. The cluster must be one that does not fall asleep.
func (s *story) shortSessions(c *cnpgv1.Cluster, settings ...string) (before, after time.Time) {
	s.Helper()
	for _, each := range settings {
		s.settleIdle(c)
		judged := s.judgedClients(c)
		before = time.Now()
		session, err := kube.OpenAs(s.ctx, c, "rw", each)
		s.must(err)
		_, after = session.Close()
		for deadline := time.Now().Add(toSample); s.judgedClients(c) <= judged; pause(s, pollEvery) {
			if time.Now().After(deadline) {
				s.Fatalf("the kernel did not report the end of a session with %s", each)
			}
		}
		s.usedSince(c, before)
	}
	return before, after
}

// Connections that are not clients do not count: the exporter, the operator's probes, standbys, bare connects and a lone
// SSLRequest. A client that reads through -ro does. THRESHOLDS is how often.
func TestOnlyUseCounts(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "probed", 3, never))
	const minutes, threshold = "0.5", 30 * time.Second
	for i := range repeats(t, "THRESHOLDS", 1) {
		if i > 0 {
			s.annotate(c, scenario.InactivityMinutes, never)
			s.wake(c)
		}
		stop := s.scrape(c)
		s.must(kube.AwaitReachable(s.ctx, c, "ro", toSettle)) // the standbys were ready later than the primary
		session := s.open(c, "ro")
		asked := time.Now()
		s.annotate(c, scenario.InactivityMinutes, minutes)
		s.usedSince(c, asked.Add(threshold)) // what a standby has seen counts as the primary's use
		before, after := session.Close()

		probing := make(chan string, 1)
		go func() {
			probes, _ := kube.Client(s.ctx, s.namespace, `end=$((SECONDS+60)) probes=0
while [ $SECONDS -lt $end ]; do
	exec 3<>/dev/tcp/probed-rw/5432
	printf '\x00\x00\x00\x08\x04\xd2\x16\x2f' >&3; read -r -t 1 -N 1 <&3 && : $((probes++))
	: </dev/tcp/probed-rw/5432
	sleep 2
done 2>/dev/null
echo $probes`)
			probing <- probes
		}()
		s.asleepOnTime(c, before, after, threshold)
		if probes, err := strconv.Atoi(strings.TrimSpace(<-probing)); err != nil || probes == 0 {
			t.Errorf("%d connections reached the Service: %v", probes, err)
		}
		if scraped := stop(); scraped == 0 {
			t.Error("no exporter was scraped")
		}
	}
}

// scrape scrapes the operator's exporters like Prometheus until stopped, which returns how often one has answered.
func (s *story) scrape(c *cnpgv1.Cluster) (stop func() (scraped int)) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	instances, scraped, ended := s.instances(c), 0, make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(5 * time.Second)
		defer ticker.Stop()
		for {
			for _, pod := range instances {
				if _, err := kube.Page(ctx, s.namespace, pod.Name, "9187", "metrics"); err == nil { // the pods fall asleep meanwhile
					scraped++
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	}()
	return func() int {
		cancel()
		<-ended
		return scraped
	}
}

// With queries, a pool's idle connections neither keep the cluster awake nor delay its shutdown. With ignore, the named
// sessions do neither, whatever they do.
func TestSessionsThatDoNotCount(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	s.annotate(c, scenario.Activity, "queries")
	var pool []*scenario.Session
	for range 10 {
		pool = append(pool, s.open(c, "rw"))
	}
	before := time.Now()
	s.must(pool[3].Run("select 1"))
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
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
	s.awake(c, threshold, "active", "a session that is not ignored")
	before, after = counted.Close()
	s.asleepOnTime(c, before, after, threshold)
	ignored.Close()
}

// All blockers are reported at once, and when they are gone the cluster sleeps.
func TestBlockers(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	s.annotate(c, scenario.Activity, "queries")

	s.asSuperuser(c, "app", "begin; create table kept (i int); prepare transaction 'two-phase'")
	locker := s.open(c, "rw")
	s.must(locker.Run("select pg_advisory_lock(1)"))
	window := time.Now().UTC().Add(-time.Hour).Format("Mon 15:04") + "-" + time.Now().UTC().Add(time.Hour).Format("15:04") + " UTC"
	s.annotate(c, scenario.KeepAwake, window)
	s.annotate(c, scenario.KeepAwakeUntil, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	s.annotate(c, "cnpg.io/reconciliationLoop", "disabled")
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes) // once something blocks
	s.blockedBy(c, "prepared_transaction", "advisory_lock", "keep_awake_window", "keep_awake_until", "reconciliation_disabled")
	for _, key := range []string{scenario.KeepAwake, scenario.KeepAwakeUntil, "cnpg.io/reconciliationLoop"} {
		s.must(kube.Annotate(s.ctx, c, key, nil))
	}
	s.blockedBy(c, "prepared_transaction", "advisory_lock")

	reader, err := kube.OpenLocalAs(s.ctx, s.namespace, c.Status.CurrentPrimary, "dbname=app replication=database application_name=subscriber")
	s.must(err)
	s.blockedBy(c, "advisory_lock", "prepared_transaction", "replication_client")
	reader.Close()

	s.explains(c, "activity=queries it counts only until its last statement ended", "(prepared_transaction)", "(advisory_lock)", "COUNTS")
	s.asSuperuser(c, "app", "rollback prepared 'two-phase'")
	locker.Close()
	s.fallsAsleep(c, "asleep once nothing blocks")
}

// explains waits until explain, in the primary's sidecar, says all that. It gives a worker or a server that is busy a few seconds.
func (s *story) explains(c *cnpgv1.Cluster, words ...string) {
	s.Helper()
	for deadline := time.Now().Add(toSample); ; pause(s, pollEvery) {
		text, err := kube.Exec(s.ctx, s.namespace, c.Status.CurrentPrimary, scenario.SidecarContainer, "/sidecar", "explain")
		missing := slices.DeleteFunc(slices.Clone(words), func(word string) bool { return strings.Contains(text, word) })
		if len(missing) == 0 {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("explain does not say %q: %v\n%s", missing, err, text)
		}
	}
}

// The control channel, through the SQL functions.
func TestControlChannel(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
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

	asked := time.Now()
	call("select scale_to_zero.keep_awake('1 hour')")
	_, err = kube.AwaitCluster(s.ctx, c, "kept awake", toSettle, until)
	s.must(err)
	s.keptAwake(c, asked, time.Hour)
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.awake(c, threshold, "keep_awake_until", "keep-awake")
	before := time.Now()
	call("select scale_to_zero.release()")
	after := time.Now()
	s.asleepOnTime(c, before, after, threshold)

	s.until(func() bool {
		s.annotate(c, scenario.InactivityMinutes, never) // it must be up for five minutes before it sleeps on request
		s.wake(c)
		s.listens(c)
		call("notify scale_to_zero, 'go to sleep'")
		s.awaitMetric(c.Status.CurrentPrimary, `notifications_total{cluster="`+c.Name+`",kind="malformed"} 1`)
		s.awaitReport(c, c.Status.CurrentPrimary, "idle", func(r report) bool { return r.Reason == "waiting" })
		call("select scale_to_zero.hibernate()")
		s.awaitReport(c, c.Status.CurrentPrimary, "that it has not been up for long enough", func(r report) bool { return r.Reason == "minimum_uptime" })
		s.annotate(c, scenario.InactivityMinutes, "0.75") // now it must be up for as long
		s.fallsAsleep(c, "asleep on request")
		return strings.HasSuffix(c.Annotations[scenario.AsleepReason], ", on request")
	}, "it slept before the threshold had passed too")
}

// The client that wakes the cluster asks before the sidecar listens, or just after: its request is refused or has an effect.
func TestControlChannel_aRequestHasAnEffectOrAnError(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	functions, err := os.ReadFile("../../sql/functions.sql")
	s.must(err)
	s.asSuperuser(c, "app", string(functions))
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	for range 3 {
		s.fallsAsleep(c, "asleep before the request")
		asked := time.Now()
		if _, err := kube.Query(s.ctx, c, "rw", "select scale_to_zero.keep_awake('4 h')"); err != nil {
			if !strings.Contains(err.Error(), "the sidecar does not listen") {
				t.Fatal(err)
			}
			continue
		}
		_, err := kube.AwaitCluster(s.ctx, c, "kept awake", toSettle, func(c *cnpgv1.Cluster) bool { return c.Annotations[scenario.KeepAwakeUntil] != "" })
		s.must(err)
		s.keptAwake(c, asked, 4*time.Hour)
		s.must(kube.Annotate(s.ctx, c, scenario.KeepAwakeUntil, nil))
	}
}

// keptAwake checks that the cluster is kept awake for that long after a request that has been made since then.
func (s *story) keptAwake(c *cnpgv1.Cluster, asked time.Time, long time.Duration) {
	s.Helper()
	until, err := time.Parse(time.RFC3339, c.Annotations[scenario.KeepAwakeUntil])
	if err != nil || until.Before(asked.Add(long).Truncate(time.Second)) || until.After(time.Now().Add(long+time.Second)) {
		s.Errorf("asked at %s, it is kept awake until %q (%v), want %s", asked, c.Annotations[scenario.KeepAwakeUntil], err, long)
	}
}

// While the operator is away hibernation is withdrawn, after 15 s or for a client: otherwise the operator would delete the primary
// whenever it returns.
func TestHibernationIsWithdrawn(t *testing.T) {
	s := disturbing(t)
	c := s.borrow(2, awake)
	d := s.turn(c)
	d.withoutOperator()
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	_, err := kube.AwaitCluster(s.ctx, c, "asked to sleep", toSleep, scenario.HibernationOn)
	s.must(err)
	since := asleepSince(c)
	withdrawn, err := kube.AwaitEventSaying(s.ctx, c, "SleepWithdrawn", "the operator did not start to hibernate", toSettle)
	s.must(err)
	if took := withdrawn.FirstTimestamp.Sub(since); took < 13*time.Second { // both are whole seconds
		t.Errorf("withdrawn after %s, want 15 s", took)
	}
	s.until(func() bool { return s.withdrawnForAClient(c) }, "the client came before the operator's 15 s had passed")
}

// withdrawnForAClient connects a client once hibernation is on, and checks that hibernation is withdrawn because of it. It reports
// whether the client was in time: the operator's 15 s may have passed first.
func (s *story) withdrawnForAClient(c *cnpgv1.Cluster) bool {
	s.Helper()
	_, err := kube.AwaitCluster(s.ctx, c, "asked to sleep again", toSleep, scenario.HibernationOn)
	s.must(err)
	const soonEnough = 10 * time.Second
	on := time.Now()
	session := s.open(c, "rw")
	defer session.Close()
	inTime := time.Since(on) < soonEnough
	_, err = kube.AwaitCluster(s.ctx, c, "taken back", toSettle, func(c *cnpgv1.Cluster) bool { return !scenario.HibernationOn(c) })
	s.must(err)
	s.must(session.Run("select 1"))
	if inTime {
		_, err = kube.AwaitEventSaying(s.ctx, c, "SleepWithdrawn", "in use after all", toSettle)
		s.must(err)
	}
	return inTime
}

// withoutOperator stops the operator until the test ends. Its webhooks do not apply to the test's namespace meanwhile: otherwise
// nobody could change a Cluster, including us. In other namespaces nothing gets past them.
func (s *disturber) withoutOperator() {
	s.Helper()
	others := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: []string{s.namespace}},
	}}
	before := s.webhooksSelect(func(string) *metav1.LabelSelector { return others })
	s.Cleanup(func() {
		s.ctx = cleanup(s.T)
		s.webhooksSelect(func(webhook string) *metav1.LabelSelector { return before[webhook] })
		s.awaitOperator()
	})
	replicas := *s.deployment(operatorDeployment).Spec.Replicas
	s.Cleanup(func() { s.ctx = cleanup(s.T); s.scaleOperator(replicas) })
	s.scaleOperator(0)
}

// webhooksSelect sets the namespaces that each of the operator's webhooks applies to, and returns those of before.
func (s *disturber) webhooksSelect(namespaces func(webhook string) *metav1.LabelSelector) (before map[string]*metav1.LabelSelector) {
	s.Helper()
	mutating := &admissionv1.MutatingWebhookConfiguration{}
	s.must(kube.Get(s.ctx, client.ObjectKey{Name: "cnpg-mutating-webhook-configuration"}, mutating))
	before = map[string]*metav1.LabelSelector{}
	changed := mutating.DeepCopy()
	for i := range changed.Webhooks {
		webhook := &changed.Webhooks[i]
		before[webhook.Name], webhook.NamespaceSelector = webhook.NamespaceSelector, namespaces(webhook.Name)
	}
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(mutating)))
	validating := &admissionv1.ValidatingWebhookConfiguration{}
	s.must(kube.Get(s.ctx, client.ObjectKey{Name: "cnpg-validating-webhook-configuration"}, validating))
	other := validating.DeepCopy()
	for i := range other.Webhooks {
		webhook := &other.Webhooks[i]
		before[webhook.Name], webhook.NamespaceSelector = webhook.NamespaceSelector, namespaces(webhook.Name)
	}
	s.must(kube.Patch(s.ctx, other, client.MergeFrom(validating)))
	return before
}
