package wake

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// becomesReady has the replica wait until it is ready; the channel is then closed.
func (r *replica) becomesReady(ctx context.Context) <-chan struct{} {
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		r.AwaitReady(ctx)
	}()
	synctest.Wait()
	return ready
}

func isClosed(channel <-chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

// relieved are a sleeping cluster that an old replica, a, leads, and a new one, b, that starts.
func relieved(w *world) (a, b *replica) {
	w.cluster(asleep)
	a = w.replica("a", "10.1.0.1")
	a.read()
	b = w.replica("b", "10.1.0.2")
	w.starts("b")
	return a, b
}

func TestAReplicaIsReadyWhenItsSlicesStand(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a, b := relieved(w)
		ready := b.becomesReady(t.Context())
		pass(t, time.Minute)
		if isClosed(ready) {
			t.Error("it is ready before its slices are made")
		}
		b.read()
		w.wants("one that starts leads clients to itself before it is ready", toBoth)
		pass(t, readyEvery)
		if !isClosed(ready) {
			t.Error("it is not ready although its slices stand")
		}
		pass(t, unreadyFor+time.Second)
		a.read()
		w.wants("the others leave the slices of one that starts", toBoth)
		b.read()
		w.wants("so does it itself until the kubelet has asked it", toBoth)
		pass(t, startsWithin)
		a.read()
		w.wants("one that starts for ever is dead", toA)
	})
}

func TestWhatAReplicaDoesNotWaitFor(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule  string
		given func(w *world, a, b *replica)
	}{
		{"slices, where no other replica is ready", func(w *world, _, _ *replica) { w.pod("a", corev1.ConditionFalse) }},
		{"slices, where no other replica leads clients", func(w *world, a, _ *replica) {
			if _, err := a.removeAll(w.t.Context()); err != nil {
				w.t.Error(err)
			}
		}},
		{"slices, once it has been ready: nobody is relieved", func(w *world, _, _ *replica) { w.pod("b", corev1.ConditionFalse) }},
		{"a cluster for which there is no port", func(w *world, _, b *replica) {
			b.ports.Range.First, b.ports.Range.Last = 10500, 10500
			w.exposed("orders-own", func(*corev1.Service) {})
			b.read()
		}},
		{"a cluster that is awake", func(w *world, _, b *replica) { w.cluster(awake); b.read() }},
		{"a cluster that has gone", func(w *world, _, b *replica) {
			known := w.cluster(nil)
			if err := w.api.Delete(w.t.Context(), known); err != nil {
				w.t.Error(err)
			}
			b.read()
		}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a, b := relieved(w)
				row.given(w, a, b)
				if ready := b.becomesReady(t.Context()); !isClosed(ready) {
					t.Error("it waits")
				}
			})
		})
	}
}

func TestABadClusterDoesNotStopARollout(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule  string
		fails int // how often the cluster is tried meanwhile
		waits time.Duration
		says  string
	}{
		{"one that fails too often is given up", firstTries, 0, "becomes ready without leading a cluster's clients"},
		{"nothing is waited for any longer than two minutes", firstTries - 1, readyWithin, "ready before the Services of every cluster lead here"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				_, b := relieved(w)
				w.sliceless = true
				for range row.fails {
					if _, err := b.Reconcile(t.Context(), ctrl.Request{NamespacedName: orders}); err == nil {
						t.Error("the slices are made")
					}
				}
				began := time.Now()
				<-b.becomesReady(t.Context())
				if waited := time.Since(began); waited != row.waits || !strings.Contains(w.logged.String(), row.says) {
					t.Errorf("it waited for %s, want %s, and says:\n%s", waited, row.waits, &w.logged)
				}
			})
		})
	}
}

func TestAStopEndsTheWait(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		_, b := relieved(w)
		ctx, stop := context.WithCancel(t.Context())
		ready := b.becomesReady(ctx)
		if isClosed(ready) {
			t.Error("it does not wait")
		}
		stop()
		synctest.Wait()
		if !isClosed(ready) || strings.Contains(w.logged.String(), "ready") {
			t.Errorf("it goes on, or says that it is ready:\n%s", &w.logged)
		}
	})
}

func TestStartsUntil(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	at := func(seconds int) metav1.Time { return metav1.NewTime(start.Add(time.Duration(seconds) * time.Second)) }
	runs := func(seconds int) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(seconds)}}}}
	}
	ready := func(status corev1.ConditionStatus, seconds int) []corev1.PodCondition {
		return []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: at(seconds)}}
	}
	for _, row := range []struct {
		rule    string
		status  corev1.PodStatus
		deleted bool
		want    time.Duration // after the start
	}{
		{"a pod whose container runs, from its start", corev1.PodStatus{StartTime: new(at(0)), Conditions: ready("False", 0), ContainerStatuses: runs(5)}, false, 5*time.Second + startsWithin},
		{"the last of its containers", corev1.PodStatus{StartTime: new(at(0)), Conditions: ready("False", 0), ContainerStatuses: runs(5), InitContainerStatuses: runs(9)}, false, 9*time.Second + startsWithin},
		{"one that the kubelet has not told of but for the container", corev1.PodStatus{ContainerStatuses: runs(5)}, false, 5*time.Second + startsWithin},
		{"one whose times are a second apart", corev1.PodStatus{StartTime: new(at(0)), Conditions: ready("False", 1), ContainerStatuses: runs(5)}, false, 5*time.Second + startsWithin},
		{"not one whose container does not run, as between two crashes", corev1.PodStatus{StartTime: new(at(0)), Conditions: ready("False", 0), ContainerStatuses: []corev1.ContainerStatus{{}}}, false, 0},
		{"not one that is ready", corev1.PodStatus{StartTime: new(at(0)), Conditions: ready("True", 0), ContainerStatuses: runs(5)}, false, 0},
		{"not one that has been ready", corev1.PodStatus{StartTime: new(at(0)), Conditions: ready("False", 9), ContainerStatuses: runs(5)}, false, 0},
		{"not one whose node is lost", corev1.PodStatus{StartTime: new(at(0)), Conditions: ready("Unknown", 9), ContainerStatuses: runs(5)}, false, 0},
		{"not one that is being deleted", corev1.PodStatus{StartTime: new(at(0)), Conditions: ready("False", 0), ContainerStatuses: runs(5)}, true, 0},
	} {
		pod := &corev1.Pod{Status: row.status}
		if row.deleted {
			pod.DeletionTimestamp = ptr.To(at(9))
		}
		want := time.Time{}
		if row.want != 0 {
			want = start.Add(row.want)
		}
		if got := startsUntil(pod); !got.Equal(want) {
			t.Errorf("%s: until %s, want %s", row.rule, got, want)
		}
	}
}
