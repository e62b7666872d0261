package control

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

func TestRecorder_writesARefusedListenOnce(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		w.with(func(w *world) { w.inUse = true })
		loop.Deliver(healthy())
		wait(3 * time.Second)
		refuse := func() {
			w.with(func(w *world) { w.listening = false })
			for range 3 {
				w.listenFailed()(&postgres.RefusedError{Database: "app", Code: "42501"})
				wait(time.Second)
			}
		}
		events := func(w *world) int {
			return len(slices.DeleteFunc(slices.Clone(w.events), func(e string) bool { return e != "ListenRefused" }))
		}
		refuse()
		expect(t, w, "Events", 1, events)
		w.with(func(w *world) { w.listening = true })
		w.notification()(postgres.Notification{Kind: postgres.KindBacklog, At: time.Now()})
		wait(time.Second)
		refuse()
		expect(t, w, "Events after it was allowed meanwhile", 2, events)
	})
}

func TestRecorder_repeatsNoEvent(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		w.with(func(w *world) { w.backups = []string{"b"} })
		loop.Deliver(healthy())
		wait(10 * time.Minute)
		expect(t, w, "Events", 1, func(w *world) int {
			return len(slices.DeleteFunc(slices.Clone(w.events), func(e string) bool { return e != "SleepBlocked" }))
		})
		bad := healthy()
		bad.Annotations[contract.AnnotationEnabled] = "yes"
		for range 3 {
			loop.Deliver(bad)
			wait(3 * time.Second)
		}
		expect(t, w, "Events", 1, func(w *world) int {
			return len(slices.DeleteFunc(slices.Clone(w.events), func(e string) bool { return e != "InvalidAnnotation" }))
		})
	})
}

func TestRecorder_losesNoEvent(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule  string
		takes time.Duration // until the API server answers
		lost  int           // answers
		stop  bool          // the pod is stopped while the Event is being written
		want  int           // Events
	}{
		{"it is written again if the answer is lost", 0, 3, false, 1},
		{"it is written although the pod is being stopped", 2 * time.Second, 0, true, 1},
		{"which it delays by two seconds at most", time.Minute, 0, true, 0},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			live(t, func(t *testing.T, w *world, loop *Loop) {
				w.with(func(w *world) { w.eventTakes, w.eventsLost = row.takes, row.lost })
				loop.Deliver(w.seen())
				wait(31 * time.Second)
				expect(t, w, "asleep", true, asleep)
				if row.stop {
					stopped := time.Now()
					w.stop()
					loop.running.Wait()
					loop.reporter.unwritten.Wait()
					if took := time.Since(stopped); took > eventGrace {
						t.Errorf("it stopped after %s", took)
					}
				} else {
					wait(10 * time.Second) // later the operator would be too late
				}
				expect(t, w, "Events", row.want, func(w *world) int {
					return len(slices.DeleteFunc(slices.Clone(w.events), func(reason string) bool { return reason != "Hibernated" }))
				})
			})
		})
	}
}

func TestRecorder_repeatsWhatTheAPIServerMayAcceptLater(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule  string
		err   error
		tries int
	}{
		{"an answer that is lost", kubernetes.ErrAnswerLost, eventTries},
		{"a conflict, as of a quota", kubernetes.ErrConflict, eventTries},
		{"an API server that is busy", &kubernetes.RefusedError{Code: http.StatusTooManyRequests}, eventTries},
		{"not a refusal", &kubernetes.RefusedError{Code: http.StatusForbidden}, 1},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				var times []time.Time
				r := recorder{logger: slog.New(slog.NewJSONHandler(&log, nil)), record: func(_ context.Context, _ kubernetes.View, _ kubernetes.Event, at time.Time) error {
					times = append(times, at)
					return fmt.Errorf("create an Event: %w", row.err)
				}}
				r.write(t.Context(), kubernetes.View{}, kubernetes.EventNormal, "Hibernated", "Put to sleep")
				r.unwritten.Wait()
				if len(times) != row.tries || len(slices.Compact(times)) != 1 {
					t.Errorf("tried %d times, want %d, each with the same time", len(times), row.tries)
				}
				if strings.Count(log.String(), "cannot write an Event") != 1 || !strings.Contains(log.String(), "Hibernated") {
					t.Errorf("log: %s", log.String())
				}
			})
		})
	}
}

func TestRecorder_writesEveryEventOfAPodThatIsBeingStopped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		away, names := true, map[time.Time]string{}
		r := recorder{logger: slog.New(slog.DiscardHandler), record: func(_ context.Context, _ kubernetes.View, e kubernetes.Event, at time.Time) error {
			if away {
				return kubernetes.ErrAnswerLost
			}
			names[at] = e.Reason
			return nil
		}}
		r.write(ctx, kubernetes.View{}, kubernetes.EventNormal, "Resumed", "")
		r.write(ctx, kubernetes.View{}, kubernetes.EventNormal, "Hibernated", "")
		time.Sleep(4 * time.Second) // the bubble's clock: the first one waits for four seconds from the third on
		synctest.Wait()
		away = false
		stop()
		r.unwritten.Wait()
		if len(names) != 2 {
			t.Errorf("written: %v", names)
		}
	})
}

func TestRecorder_warnsOfAnIgnoreThatCoversPods(t *testing.T) {
	t.Parallel()
	var told []string
	r := recorder{pod: "c-1", record: func(_ context.Context, _ kubernetes.View, e kubernetes.Event, _ time.Time) error {
		told = append(told, string(e.Type)+" "+e.Reason+": "+e.Message)
		return nil
	}}
	covered := "Warning PodsIgnored: The annotation xata.io/scale-to-zero-ignore probably covers every pod, so that none keeps the cluster awake or wakes it: " +
		"client=10.0.0.0/8 contains 10.244.0.5, the address of c-1"
	for _, row := range []struct {
		rule, primary, ignore string
		want                  []string
	}{
		{"not of another address", "c-1", "client=192.0.2.10", nil},
		{"not where the item also names a user", "c-1", "client=10.0.0.0/8 user=monitoring", nil},
		{"not of a standby", "c-2", "client=10.0.0.0/8", nil},
		{"of a range that contains an instance", "c-1", "user=monitoring; client=10.0.0.0/8", []string{covered}},
		{"not again", "c-1", "client=10.0.0.0/8", []string{covered}},
		{"not when it is gone", "c-1", "user=monitoring", []string{covered}},
		{"when it is back", "c-1", "client=10.0.0.0/8", []string{covered, covered}},
	} {
		policy, problems := idle.ParsePolicy(map[string]string{contract.AnnotationIgnore: row.ignore}, time.Now())
		if len(problems) != 0 {
			t.Fatal(problems)
		}
		r.decided(t.Context(), Status{Policy: policy, View: kubernetes.View{
			CurrentPrimary: row.primary, Instances: []string{"c-1"}, Addresses: map[string]netip.Addr{"c-1": netip.MustParseAddr("10.244.0.5")},
		}})
		r.unwritten.Wait()
		if diff := cmp.Diff(row.want, told); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.rule, diff)
		}
	}
}

func TestRecorder_saysOnceWhyAClusterCannotDoze(t *testing.T) {
	t.Parallel()
	var told []string
	r := recorder{pod: "c-1", record: func(_ context.Context, _ kubernetes.View, e kubernetes.Event, _ time.Time) error {
		told = append(told, e.Reason+": "+e.Message)
		return nil
	}}
	status := func(primary string, enabled bool, reasons ...idle.Reason) Status {
		return Status{
			View: kubernetes.View{CurrentPrimary: primary}, Policy: idle.Policy{Enabled: enabled},
			Decision: idle.Decision{DozeBlockers: reasons},
		}
	}
	manual := "DozeBlocked: doze-minutes is set, but the cluster does not doze for now (wake_manual): " + idle.ReasonWakeManual.Description()
	both := "DozeBlocked: doze-minutes is set, but the cluster does not doze for now (standbys, wake_manual): " +
		idle.ReasonStandbys.Description() + "; " + idle.ReasonWakeManual.Description()
	for _, row := range []struct {
		rule string
		seen Status
		want []string
	}{
		{"not of a standby", status("c-2", true, idle.ReasonWakeManual), nil},
		{"not while the feature is off", status("c-1", false, idle.ReasonWakeManual), nil},
		{"of the primary", status("c-1", true, idle.ReasonWakeManual), []string{manual}},
		{"not again", status("c-1", true, idle.ReasonWakeManual), []string{manual}},
		{"of another set", status("c-1", true, idle.ReasonStandbys, idle.ReasonWakeManual), []string{manual, both}},
		{"not when it can", status("c-1", true), []string{manual, both}},
		{"when it cannot any more", status("c-1", true, idle.ReasonWakeManual), []string{manual, both, manual}},
	} {
		r.decided(t.Context(), row.seen)
		r.unwritten.Wait()
		if diff := cmp.Diff(row.want, told); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.rule, diff)
		}
	}
}
