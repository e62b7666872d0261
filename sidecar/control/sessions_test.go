package control

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
)

func TestReturning_isAnIdleSessionAfterThreeTurns(t *testing.T) {
	t.Parallel()
	ignored := activity.Terminable{PID: 1, User: "mon", Client: netip.MustParseAddr("10.0.0.1")}
	pool := activity.Terminable{PID: 2, User: "pool", Client: netip.MustParseAddr("10.0.0.2"), Idle: true}
	listener := activity.Terminable{PID: 3, User: "listener", Client: netip.MustParseAddr("10.0.0.3"), Idle: true}
	for _, row := range []struct {
		rule      string
		wake      contract.LastWake
		withdrawn int
		sessions  []activity.Terminable
		want      activity.Terminable
	}{
		{"two turns are no pattern", contract.LastWake{Returns: 2}, 0, []activity.Terminable{pool}, activity.Terminable{}},
		{"three are", contract.LastWake{Returns: 3}, 0, []activity.Terminable{ignored, pool}, pool},
		{"a sleep that a client ended before it began is a turn", contract.LastWake{Returns: 1}, 2, []activity.Terminable{pool}, pool},
		{"without a wake too", contract.LastWake{}, 3, []activity.Terminable{pool}, pool},
		{"who woke the cluster is named", contract.LastWake{Returns: 3, By: "10.0.0.3"}, 0, []activity.Terminable{pool, listener, pool}, listener},
		{"nobody is once all idle sessions have gone", contract.LastWake{Returns: 3}, 0, []activity.Terminable{ignored}, activity.Terminable{}},
		{"nor is a standby or PgBouncer", contract.LastWake{Returns: 3}, 0, []activity.Terminable{{PID: 4, Idle: true, Infrastructure: true}}, activity.Terminable{}},
	} {
		if got := returning(row.wake, row.withdrawn, row.sessions); got != row.want {
			t.Errorf("%s: %+v, want %+v", row.rule, got, row.want)
		}
	}
}

// With queries, a client that listens comes back as soon as its session is ended, and wakes the cluster. After three turns it stays
// awake until that client has gone.
func TestLoop_staysAwakeForAClientThatAlwaysReturns(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule    string
		returns int
		asleep  bool
	}{
		{"after two turns it sleeps", 2, true},
		{"after three it does not", 3, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) {
				w.view.Annotations[contract.AnnotationActivity] = "queries"
				wake, err := contract.LastWake{At: time.Now().Add(-time.Minute), By: peer.Addr().String(), Service: "c-rw", Returns: row.returns}.Encode()
				if err != nil {
					t.Error(err)
				}
				w.view.Annotations[contract.AnnotationLastWake] = wake
				w.inUse, w.stateChanged = true, time.Now()
			}, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(10 * time.Minute)
				expect(t, w, "asleep", row.asleep, asleep)
				if row.asleep {
					return
				}
				expect(t, w, "the reason", idle.ReasonClientsReturn, func(w *world) idle.Reason { return w.status.Decision.Reason })
				expect(t, w, "an Event names user and address", true, func(w *world) bool {
					at := slices.Index(w.events, "SleepBlocked")
					return at >= 0 && strings.HasSuffix(w.messages[at], `: user "app" at 10.0.0.9`)
				})
				w.leave()
				wait(2 * time.Minute)
				expect(t, w, "asleep once the client has gone", true, asleep)
			})
		})
	}
}

// A client whose session never counts may have come back since it was cut, and PostgreSQL would wait for it.
func TestDrain_endsWhatNeverCountsForOurHibernationOnly(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		change func(*kubernetes.View)
		want   string
	}{
		{"asleep by our hibernation", func(v *kubernetes.View) { v.Hibernating, v.Ours = true, true }, "mon"},
		{"so does a standby", func(v *kubernetes.View) { v.Hibernating, v.Ours, v.CurrentPrimary = true, true, "c-2" }, "mon"},
		{"a person's hibernation is served as without us", func(v *kubernetes.View) { v.Hibernating = true }, ""},
		{"so is a restart", func(*kubernetes.View) {}, ""},
		{"PostgreSQL has stopped for a doze", func(v *kubernetes.View) { v.Hibernating, v.Ours, v.Fenced, v.Dozing = true, true, true, true }, ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			live(t, func(t *testing.T, w *world, loop *Loop) {
				v := healthy()
				v.Annotations[contract.AnnotationIgnore] = "user=mon"
				row.change(&v)
				loop.Deliver(v)
				wait(0)
				loop.Drain(t.Context())
				expect(t, w, "whose sessions are ended", row.want, func(w *world) string { return w.instance.ended })
			})
		})
	}
}
