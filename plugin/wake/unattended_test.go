package wake

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// sleepsFor makes the cluster hibernate, and says for which causes it is woken.
func sleepsFor(wake string, pods metav1.ConditionStatus, reason string) func(*cnpgv1.Cluster) {
	return func(c *cnpgv1.Cluster) {
		c.Annotations[contract.AnnotationWake] = wake
		c.Annotations[contract.AnnotationKeepAwake] = time.Now().UTC().Format("Mon 15:04") + "-23:59 UTC" // a window that has just opened
		c.Annotations[contract.AnnotationHibernation] = "on"
		c.Annotations[contract.AnnotationAsleepSince] = time.Now().Add(-time.Hour).Format(time.RFC3339)
		c.Status.Conditions = []metav1.Condition{{Type: contract.ConditionHibernation, Status: pods, Reason: reason}}
	}
}

// said returns the messages of the Events with that reason.
func (w *world) said(reason string) (messages []string) {
	w.t.Helper()
	for _, event := range w.events() {
		if event.Reason == reason {
			messages = append(messages, event.Message)
		}
	}
	return messages
}

// primaryReady makes the primary ready, whatever the Services lead to.
func (w *world) primaryReady() {
	w.t.Helper()
	w.cluster(func(c *cnpgv1.Cluster) { c.Status.CurrentPrimary = "orders-1" })
	w.put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: orders.Namespace, Name: "orders-1", UID: "orders-1", OwnerReferences: ofOrders,
			Labels: map[string]string{"cnpg.io/cluster": orders.Name, "cnpg.io/podRole": "instance"},
		},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	})
}

func TestUnattended_wakesForAWindow(t *testing.T) {
	t.Parallel()
	hibernated := sleepsFor("on-connect,window", metav1.ConditionTrue, contract.Hibernated)
	for _, row := range []struct {
		rule        string
		cluster     func(*cnpgv1.Cluster)
		woken       bool
		then        func(*world)
		want        []string
		timesOut    bool
		depth, from string
	}{
		{"from hibernation", hibernated, true, (*world).primaryReady, []string{"orders by window from hibernation: success after 3s"}, false, "", "hibernation"},
		{"from a doze", func(c *cnpgv1.Cluster) {
			hibernated(c)
			dozes(c)
			delete(c.Annotations, contract.AnnotationHibernation)
			delete(c.Annotations, contract.AnnotationAsleepSince)
			c.Annotations[contract.AnnotationDozingSince] = time.Now().Add(-time.Hour).Format(time.RFC3339)
		}, true, (*world).primaryReady, []string{"orders by window from doze: success after 3s"}, false, contract.DepthDoze, "a doze"},
		{"and says so if PostgreSQL does not come", hibernated, true, func(*world) {}, []string{"orders by window from hibernation: timeout after 5m0s"}, true, "", "hibernation"},
		{"not before every pod is gone", sleepsFor("on-connect,window", metav1.ConditionFalse, contract.HibernationDeletingPods), false, nil, nil, false, "", ""},
		{"not if the annotation does not list it", sleepsFor("on-connect", metav1.ConditionTrue, contract.Hibernated), false, nil, nil, false, "", ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
				w.serves(false)
				w.cluster(row.cluster)
				a.read()
				b.read()
				_, asleep := w.cluster(nil).Annotations[contract.AnnotationHibernation]
				_, dozing := w.cluster(nil).Annotations[contract.AnnotationFencedInstances]
				if woken := !asleep && !dozing; woken != row.woken {
					t.Fatalf("woken: %t", woken)
				}
				if !row.woken {
					return
				}
				wake, err := contract.ParseLastWake(w.cluster(nil).Annotations[contract.AnnotationLastWake])
				if err != nil || wake.Cause != contract.CauseWindow || wake.Depth != row.depth || !strings.HasPrefix(wake.By, "keep-awake window of ") {
					t.Errorf("the last wake is %+v, %v", wake, err)
				}
				a.read()
				b.read()
				if diff := cmp.Diff([]string{"Woken from " + row.from + " for " + wake.By}, w.said("Woken")); diff != "" {
					t.Errorf("Events (-want +got):\n%s", diff)
				}
				pass(t, 3*time.Second)
				row.then(w)
				for range 3 {
					again := a.read()
					b.read()
					pass(t, again)
				}
				if diff := cmp.Diff(row.want, w.woken); diff != "" {
					t.Errorf("observed (-want +got):\n%s", diff)
				}
				if timedOut := len(w.said("WakeTimedOut")) == 1; timedOut != row.timesOut {
					t.Errorf("the Event says that it timed out: %t", timedOut)
				}
			})
		})
	}
}

func TestUnattended_observesAWakeWhoseAnswerWasLost(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.serves(false)
		w.cluster(sleepsFor("on-connect,window", metav1.ConditionTrue, contract.Hibernated))
		lost := errors.New("unexpected EOF")
		applied := false
		a.Client = interceptor.NewClient(w.api.(client.WithWatch), interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
				if !applied {
					applied = true
					return errors.Join(c.Patch(ctx, o, patch, options...), lost)
				}
				return lost
			},
		})
		before := w.cluster(nil)
		for range 3 { // with informers that do not learn of it
			if _, err := a.wakeCluster(t.Context(), before, plan.View(before, time.Now()), 0, plan.Wake{Cause: contract.CauseWindow, By: "x"}, time.Now()); !errors.Is(err, lost) {
				t.Fatal(err)
			}
			pass(t, time.Second)
		}
		a.Client = w.api
		pass(t, 3*time.Second)
		w.primaryReady()
		a.read()
		if diff := cmp.Diff([]string{"orders by window from hibernation: success after 6s"}, w.woken); diff != "" {
			t.Errorf("observed (-want +got):\n%s", diff)
		}
	})
}

func TestUnattended_wakesOnRequest(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.serves(false)
		w.cluster(sleepsFor("on-connect", metav1.ConditionTrue, contract.Hibernated))
		a.read()
		if _, asleep := w.cluster(nil).Annotations[contract.AnnotationHibernation]; !asleep {
			t.Fatal("woken without a request")
		}
		since := w.cluster(nil).Annotations[contract.AnnotationAsleepSince]
		w.cluster(annotated(contract.AnnotationWakeRequested, time.Now().UTC().Format(time.RFC3339)))
		a.read()
		annotations := w.cluster(nil).Annotations
		if _, asleep := annotations[contract.AnnotationHibernation]; asleep {
			t.Fatal("not woken")
		}
		if wake, err := contract.ParseLastWake(annotations[contract.AnnotationLastWake]); err != nil ||
			wake.Cause != contract.CauseRequest || wake.Since != since {
			t.Errorf("the last wake is %+v, %v", wake, err)
		}
		if _, left := annotations[contract.AnnotationWakeRequested]; !left {
			t.Error("the request is gone, so that the sidecar does not keep the cluster awake for it")
		}
	})
}

// A budget that is used up postpones the wake, and does not lose it.
func TestUnattended_waitsForTheBudget(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		a.budget = waker.NewBudget(1, 1, 1)
		for a.budget.Take(netip.Addr{}, orders, time.Now()) {
		}
		w.serves(false)
		w.cluster(sleepsFor("window", metav1.ConditionTrue, contract.Hibernated))
		again := a.read()
		if _, asleep := w.cluster(nil).Annotations[contract.AnnotationHibernation]; !asleep || again > time.Second {
			t.Fatalf("asleep: %t; the next look is in %s", asleep, again)
		}
		pass(t, time.Second)
		a.read()
		if _, asleep := w.cluster(nil).Annotations[contract.AnnotationHibernation]; asleep {
			t.Error("not woken a second later")
		}
	})
}

func TestUnattended_wakesForAnObject(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.serves(false)
		sleeps := func(since time.Time) {
			w.cluster(func(c *cnpgv1.Cluster) {
				sleepsFor("on-connect,objects", metav1.ConditionTrue, contract.Hibernated)(c)
				c.Annotations[contract.AnnotationAsleepSince] = since.Format(time.RFC3339)
			})
		}
		lastWake := func() contract.LastWake {
			wake, err := contract.ParseLastWake(w.cluster(nil).Annotations[contract.AnnotationLastWake])
			if _, asleep := w.cluster(nil).Annotations[contract.AnnotationHibernation]; asleep || err != nil {
				t.Fatalf("asleep: %t; %v", asleep, err)
			}
			return wake
		}
		database := &cnpgv1.Database{ObjectMeta: metav1.ObjectMeta{Namespace: orders.Namespace, Name: "db", Generation: 1}}
		database.Spec.ClusterRef.Name = orders.Name
		w.put(database)
		sleeps(time.Now().Add(-time.Hour))
		a.read()
		if wake := lastWake(); wake.Cause != contract.CauseObject || wake.By != "Database db" || wake.Unused != 0 {
			t.Errorf("the last wake is %+v", wake)
		}
		a.read()
		if diff := cmp.Diff([]string{"Woken from hibernation for Database db"}, w.said("Woken")); diff != "" {
			t.Errorf("Events (-want +got):\n%s", diff)
		}

		pass(t, 2*time.Minute)
		sleeps(time.Now())
		for range 2 {
			if again := a.read(); again != time.Minute {
				t.Errorf("the next look is in %s", again)
			}
		}
		if said := w.said("ObjectPending"); len(said) != 1 || !strings.Contains(said[0], "Database db") {
			t.Errorf("Events: %q", said)
		}
		pass(t, time.Minute)
		a.read()
		if wake := lastWake(); wake.Unused != 1 {
			t.Errorf("the last wake is %+v", wake)
		}

		database.Status.ObservedGeneration = 1
		if err := w.api.Update(t.Context(), database); err != nil {
			t.Fatal(err)
		}
		sleeps(time.Now().Add(-2 * time.Hour))
		a.read()
		if _, asleep := w.cluster(nil).Annotations[contract.AnnotationHibernation]; !asleep {
			t.Error("woken for an object that is applied")
		}
	})
}

// The cluster is woken for each Backup that is due, and less and less while the operator makes none.
func TestUnattended_wakesForABackup(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.serves(false)
		sleeps := func() {
			w.cluster(func(c *cnpgv1.Cluster) {
				sleepsFor("on-connect,backup", metav1.ConditionTrue, contract.Hibernated)(c)
				c.Annotations[contract.AnnotationAsleepSince] = time.Now().Format(time.RFC3339)
			})
		}
		wokenAfter := func(unused int) (took time.Duration) {
			t.Helper()
			for began := time.Now(); ; pass(t, min(a.read(), time.Hour)) {
				annotations := w.cluster(nil).Annotations
				if _, asleep := annotations[contract.AnnotationHibernation]; asleep {
					continue
				}
				wake, err := contract.ParseLastWake(annotations[contract.AnnotationLastWake])
				if err != nil || wake.Cause != contract.CauseBackup || wake.By != "ScheduledBackup nightly" || wake.Unused != unused {
					t.Errorf("the last wake is %+v, %v", wake, err)
				}
				return time.Since(began)
			}
		}
		schedule := &cnpgv1.ScheduledBackup{
			ObjectMeta: metav1.ObjectMeta{Namespace: orders.Namespace, Name: "nightly", Annotations: map[string]string{contract.AnnotationSuspended: "x"}},
			Spec: cnpgv1.ScheduledBackupSpec{
				Schedule: "@every 2h", Suspend: ptr.To(true), Cluster: cnpgv1.LocalObjectReference{Name: orders.Name},
			},
			Status: cnpgv1.ScheduledBackupStatus{LastCheckTime: ptr.To(metav1.Now())},
		}
		w.put(schedule)
		sleeps()
		if took := wokenAfter(0); took < 2*time.Hour || took > 2*time.Hour+5*time.Minute {
			t.Errorf("woken after %s", took)
		}
		a.read()
		if diff := cmp.Diff([]string{"Woken from hibernation for ScheduledBackup nightly"}, w.said("Woken")); diff != "" {
			t.Errorf("Events (-want +got):\n%s", diff)
		}

		pass(t, 2*time.Minute)
		sleeps()
		if took := wokenAfter(1).Round(time.Second); took != time.Minute {
			t.Errorf("without a Backup, woken again after %s", took)
		}
		if said := w.said("BackupPending"); len(said) != 1 || !strings.Contains(said[0], "ScheduledBackup nightly") {
			t.Errorf("Events: %q", said)
		}

		schedule.Status.LastCheckTime = ptr.To(metav1.Now())
		if err := w.api.Update(t.Context(), schedule); err != nil {
			t.Fatal(err)
		}
		pass(t, 2*time.Minute)
		sleeps()
		if took := wokenAfter(0); took < time.Hour+58*time.Minute {
			t.Errorf("after a Backup, woken again after %s", took)
		}
	})
}
