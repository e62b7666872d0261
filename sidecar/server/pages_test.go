package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/control"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/monitor"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// noon is when the newest sample ended.
var noon = time.Date(2026, time.March, 2, 12, 0, 0, 0, time.FixedZone("CET", 3600))

// metricsOf are the metrics of a sidecar that published the statuses.
func metricsOf(statuses ...control.Status) *Metrics {
	m := NewMetrics("blue", "v1.2.3", func() time.Time { return noon.Add(time.Second) })
	for _, s := range statuses {
		m.Publish(s)
	}
	return m
}

// primary is a primary with the feature on and a named application database.
func primary() control.Status {
	return control.Status{
		Pod: "blue-1", ViewKnown: true,
		View:     kubernetes.View{CurrentPrimary: "blue-1", TargetPrimary: "blue-1", Healthy: true, PluginListed: true, ApplicationDatabase: "app"},
		Policy:   idle.Policy{Enabled: true, Threshold: 30 * time.Minute},
		Decision: idle.Decision{Reason: idle.ReasonUnknown, Blockers: []idle.Reason{idle.ReasonUnknown}},
	}
}

// idlePrimary has been idle for five minutes.
func idlePrimary() control.Status {
	s := primary()
	s.Known, s.SampledAt, s.DecidedAt, s.ListenerConnected, s.Reported = true, noon, noon, true, true
	s.State = idle.State{IdleSince: noon.Add(-5 * time.Minute), LastActivity: noon.Add(-301500 * time.Millisecond)}
	s.Decision = idle.Decision{Reason: idle.ReasonWaiting, Blockers: []idle.Reason{idle.ReasonWaiting}, Due: noon.Add(25 * time.Minute)}
	return s
}

// busyPrimary has two client sessions and a running Backup.
func busyPrimary() control.Status {
	s := primary()
	s.Known, s.SampledAt, s.InUse, s.Reported = true, noon, true, true
	s.LastPeer = netip.MustParseAddr("10.0.0.9")
	s.ServerBlockers, s.Scheduler = []idle.Reason{idle.ReasonAdvisoryLock}, true
	s.Tally.Add(activity.Session{BackendType: "client backend", User: "app", State: "active"}, activity.Rules{})
	s.Tally.Add(activity.Session{BackendType: "client backend", User: "app", State: "idle in transaction (aborted)"}, activity.Rules{})
	s.State.LastActivity = noon
	s.Decision = idle.Decision{Reason: idle.ReasonActive, Blockers: []idle.Reason{idle.ReasonActive, idle.ReasonBackupRunning}}
	return s
}

// replica is a standby with the feature on.
func replica() control.Status {
	s := primary()
	s.View.CurrentPrimary, s.View.TargetPrimary = "blue-2", "blue-2"
	s.Decision = idle.Decision{Reason: idle.ReasonNotPrimary, Blockers: []idle.Reason{idle.ReasonNotPrimary, idle.ReasonUnknown}}
	return s
}

// lost was idle, but its newest sample failed.
func lost() control.Status {
	s := idlePrimary()
	s.Known, s.State.IdleSince = false, time.Time{}
	s.Decision = idle.Decision{Reason: idle.ReasonUnknown, Blockers: []idle.Reason{idle.ReasonUnknown}}
	return s
}

// dozing is stopped, which its newest sample does not show.
func dozing() control.Status {
	s := idlePrimary()
	s.Known, s.ListenerConnected, s.View.Dozing = false, false, true
	s.Decision = idle.Decision{Reason: idle.ReasonDozing, Blockers: []idle.Reason{idle.ReasonDozing}}
	return s
}

// dozeless is to doze, and cannot.
func dozeless() control.Status {
	s := idlePrimary()
	s.Decision.DozeBlockers = []idle.Reason{idle.ReasonWakeManual, idle.ReasonPodMadeBefore}
	return s
}

// observed would have slept for 20 s at its own threshold, and does so for another five minutes.
func observed() control.Status {
	s := idlePrimary()
	s.Policy = idle.Policy{Observed: true, Threshold: 10 * time.Second}
	s.Decision = idle.Decision{Reason: idle.ReasonObserved, Blockers: []idle.Reason{idle.ReasonObserved}, ThresholdPassed: true}
	s.WhatIf = idle.WhatIf{
		Observed: time.Hour, Decided: noon, Reason: idle.ReasonObserved, At: make([]idle.Sleeps, len(idle.Thresholds())),
		Awake:     map[idle.Reason]time.Duration{idle.ReasonActive: 45 * time.Minute, idle.ReasonWaiting: 5 * time.Minute, idle.ReasonObserved: 10 * time.Minute},
		Threshold: 10 * time.Second, Own: idle.Sleeps{Count: 2, Lasted: 20 * time.Second, Since: noon.Add(-5 * time.Minute)},
	}
	s.WhatIf.At[0] = idle.Sleeps{Count: 1, Lasted: 15 * time.Second}
	return s
}

func invalid() control.Status {
	s := primary()
	s.Policy, s.Problems = idle.Policy{}, []idle.Problem{{Key: contract.AnnotationEnabled, Value: "yes"}}
	s.Decision = idle.Decision{Reason: idle.ReasonInvalidAnnotation, Blockers: []idle.Reason{idle.ReasonInvalidAnnotation, idle.ReasonUnknown}}
	return s
}

// counted has counted one of everything.
func counted() *Metrics {
	m := metricsOf(idlePrimary())
	m.Sampled(3*time.Millisecond, nil)
	m.Sampled(3*time.Second, errors.New("timeout"))
	for _, kind := range append(postgres.Kinds(), postgres.KindActivity) {
		m.Notified(kind)
	}
	for _, verdict := range append(activity.Verdicts(), activity.VerdictUnseen) {
		m.Judged(verdict)
	}
	for _, result := range append(sleep.Results(), sleep.ResultConflict) {
		m.Attempted(result, false)
		m.Attempted(result, true)
	}
	return m
}

// get requests a page from a handler.
func get(handler http.Handler, method, path string) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(method, path, nil))
	return answer
}

// golden compares with a file under testdata, or writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestHandler_pagesAreGolden(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, file string
		metrics    *Metrics
	}{
		{"before the first step nothing about the database is shown", "start", metricsOf()},
		{"an idle primary shows how long it is proven idle", "idle", metricsOf(idlePrimary())},
		{"a busy primary shows its sessions", "busy", metricsOf(idlePrimary(), busyPrimary())},
		{"a replica shows no listener, since it wants none", "replica", metricsOf(replica())},
		{"after a failed sample what was known before is shown with its time only", "lost", metricsOf(idlePrimary(), lost())},
		{"a primary that dozes shows that, and no sessions", "dozing", metricsOf(idlePrimary(), dozing())},
		{"a primary that cannot doze reports why", "dozeless", metricsOf(dozeless())},
		{"a bad annotation shows as the reason, and there is no threshold", "invalid", metricsOf(invalid())},
		{"an observed cluster shows how it would have slept", "observed", metricsOf(observed())},
		{"everything that is counted is counted once, under closed labels", "counted", counted()},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			pages := row.metrics.Handler("blue", "blue-1", monitor.NewClientAddrs(), nobody{}, unset)
			metrics := get(pages, http.MethodGet, "/metrics")
			if metrics.Code != http.StatusOK {
				t.Errorf("/metrics answers %d", metrics.Code)
			}
			golden(t, row.file+".metrics", metrics.Body.String())
			report := get(pages, http.MethodGet, "/activity")
			if got := report.Header().Get("Content-Type"); got != "application/json" {
				t.Errorf("/activity is %q", got)
			}
			golden(t, row.file+".json", report.Body.String())
			if _, err := contract.DecodeReport(report.Body.Bytes()); err != nil {
				t.Errorf("the report cannot be read by a sibling: %v", err)
			}
			problems, err := testutil.GatherAndLint(row.metrics.registry)
			if err != nil || len(problems) != 0 {
				t.Errorf("lint: %v, %v", problems, err)
			}
		})
	}
}

func TestReport_saysWhetherItIsKnownThatNobodyUsedIt(t *testing.T) {
	t.Parallel()
	if metricsOf(idlePrimary()).Report("blue", "blue-1").Unused {
		t.Error("an instance that was used is not")
	}
	s := idlePrimary()
	s.State = idle.State{IdleSince: noon, Unused: noon}
	if !metricsOf(s).Report("blue", "blue-1").Unused {
		t.Error("one that nobody used is used")
	}
}

func TestStatus_listensWhereItCan(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		change func(*control.Status)
		want   bool
	}{
		{"the primary of a cluster with an application database listens", func(*control.Status) {}, true},
		{"a cluster without an application database has nothing to listen in", func(s *control.Status) { s.View.ApplicationDatabase = "" }, false},
		{"the annotation names a database", func(s *control.Status) {
			s.View.ApplicationDatabase, s.Policy.DatabaseSet, s.Policy.Database = "", true, "other"
		}, true},
		{"an empty annotation turns it off", func(s *control.Status) { s.Policy.DatabaseSet = true }, false},
		{"a standby cannot listen", func(s *control.Status) { *s = replica() }, false},
		{"the first instance of a replica cluster is a standby too", func(s *control.Status) { s.View.ReplicaCluster = true }, false},
		{"nobody listens while the feature is off", func(s *control.Status) { s.Policy.Enabled = false }, false},
		{"nobody listens to a server that a doze has stopped", func(s *control.Status) { s.View.Dozing = true }, false},
		{"nobody listens before the Cluster was seen", func(s *control.Status) { s.ViewKnown = false }, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			s := primary()
			row.change(&s)
			if got := s.Listens(); got != row.want {
				t.Errorf("wanted: %t", got)
			}
		})
	}
}

func TestHandler_healthIsThatOfTheProcess(t *testing.T) {
	t.Parallel()
	answer := get(metricsOf().Handler("blue", "blue-1", monitor.NewClientAddrs(), nobody{}, unset), http.MethodGet, "/healthz")
	if answer.Code != http.StatusOK || answer.Body.String() != "ok\n" {
		t.Errorf("answer %d %q", answer.Code, answer.Body)
	}
}

// unset is a server whose passwords have not been set.
func unset(context.Context, string) (bool, error) { return false, nil }

func TestHandler_answersWhetherAPasswordIsSet(t *testing.T) {
	t.Parallel()
	for rule, row := range map[string]struct {
		isSet func(context.Context, string) (bool, error)
		want  int
	}{
		"it has been set":         {func(_ context.Context, role string) (bool, error) { return role == "app", nil }, http.StatusNoContent},
		"it has not been set yet": {unset, http.StatusServiceUnavailable},
		"PostgreSQL cannot be asked": {
			func(context.Context, string) (bool, error) { return true, errors.New("starting up") }, http.StatusServiceUnavailable,
		},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				pages := metricsOf().Handler("blue", "blue-1", monitor.NewClientAddrs(), nobody{}, row.isSet)
				ask := func() int { return get(pages, http.MethodGet, contract.PathPasswordSet+"?role=app").Code }
				if got := ask(); got != row.want {
					t.Errorf("answer %d, want %d", got, row.want)
				}
				if got := ask(); got != http.StatusServiceUnavailable {
					t.Errorf("a second request at once is answered %d", got)
				}
				time.Sleep(passwordInterval)
				synctest.Wait()
				if got := ask(); got != row.want {
					t.Errorf("answer %d later, want %d", got, row.want)
				}
				time.Sleep(passwordInterval)
			})
		})
	}
}

func TestHandler_pagesCanOnlyBeRead(t *testing.T) {
	t.Parallel()
	pages := metricsOf().Handler("blue", "blue-1", monitor.NewClientAddrs(), nobody{}, unset)
	for _, path := range []string{"/metrics", "/activity", "/healthz"} {
		if got := get(pages, http.MethodPost, path).Code; got != http.StatusMethodNotAllowed {
			t.Errorf("POST %s answers %d", path, got)
		}
	}
	if got := get(pages, http.MethodGet, "/drain").Code; got != http.StatusNotFound {
		t.Errorf("GET /drain answers %d", got)
	}
}

// BenchmarkMetricsPage measures a scrape; the page's size is reported in bytes.
func BenchmarkMetricsPage(b *testing.B) {
	pages := metricsOf(busyPrimary()).Handler("blue", "blue-1", monitor.NewClientAddrs(), nobody{}, unset)
	var size int
	b.ReportAllocs()
	for b.Loop() {
		size = get(pages, http.MethodGet, "/metrics").Body.Len()
	}
	b.ReportMetric(float64(size), "page-bytes")
}

// nobody allows no sample.
type nobody struct{}

func (nobody) SampleFor(context.Context, netip.Addr) bool { return false }
