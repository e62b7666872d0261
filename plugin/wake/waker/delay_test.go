package waker

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres/probe"
)

// A lost packet delays the probe that sent it by the kernel's retransmission, a second, but no other probe.
func TestResolve_doesNotWaitForAProbeWhosePacketIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, awake)
		w.pod("orders-1", "10.0.0.1", same)
		var probes atomic.Int32
		w.waker.Probe = func(ctx context.Context, _ netip.AddrPort) bool {
			if probes.Add(1) > 1 {
				return true
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			return true
		}
		began := time.Now()
		if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 2*probe.Interval(0) {
			t.Errorf("it took %s", took)
		}
	})
}

func TestPause_asksSeldomerWithTime(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule       string
		candidates int
		asked      time.Duration
		want       time.Duration
	}{
		{"without an instance only changes matter", 0, 0, time.Second},
		{"at first every 20 ms", 1, 0, 20 * time.Millisecond},
		{"then every second", 1, 5 * time.Second, time.Second},
	} {
		if got := pause(row.candidates, row.asked); got != row.want {
			t.Errorf("%s: got %s, want %s", row.rule, got, row.want)
		}
	}
}

func TestResolve_givesEveryClientItsOwnTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 30*time.Second, awake)
		w.later(40*time.Second, func() { w.postgres.Store(true); w.pod("orders-1", "10.0.0.1", same) })
		first := make(chan error, 1)
		go func() {
			_, err := w.waker.Resolve(t.Context(), service("-rw"), by)
			first <- err
		}()
		time.Sleep(20 * time.Second) // the bubble's clock
		began := time.Now()
		if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); err != nil || time.Since(began) > 21*time.Second {
			t.Errorf("the later client got %v after %s", err, time.Since(began))
		}
		if err := <-first; !errors.Is(err, gateway.ErrTimeout) {
			t.Errorf("the first got %v", err)
		}
		if left := len(w.waker.searches.Keys()); left != 0 {
			t.Errorf("%d Services are searched for", left)
		}
	})
}

func TestResolve_saysWhatADelayedWakeWaitsFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3*time.Minute, awake)
		w.pod("orders-1", "", func(p *corev1.Pod) {
			p.UID = "pod"
			p.Status.ContainerStatuses = []corev1.ContainerStatus{waitingFor("ContainerCreating", "")}
		})
		event := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: "attach"},
			InvolvedObject: corev1.ObjectReference{Name: "orders-1", UID: "pod"},
			Reason:         "FailedAttachVolume", Message: "Multi-Attach error",
		}
		if err := w.api.Create(t.Context(), event); err != nil {
			t.Fatal(err)
		}
		_, err := w.waker.Resolve(t.Context(), service("-rw"), by)
		if !errors.Is(err, gateway.ErrTimeout) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		_, _, _, events := w.seen()
		if len(events) != 2 || !strings.Contains(events[0], "WakeDelayed The wake takes longer than 30s: a volume of pod orders-1 is not available (FailedAttachVolume): Multi-Attach error") ||
			!strings.Contains(events[1], "WakeTimedOut") || !strings.Contains(events[1], "Multi-Attach error") {
			t.Errorf("events:\n%s", strings.Join(events, "\n"))
		}
	})
}

// A wake that waits for the budget does not need the operator.
func TestResolve_saysThatADelayedWakeWaitsForTheBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3*time.Minute, func(*cnpgv1.Cluster) {})
		w.waker.Budget.shared.empties = time.Now().Add(time.Hour)
		w.waker.Budget.took(gateway.SourceOf(by.Peer.Addr()), sourceBurst, time.Now())
		w.waker.Budget.accounts[gateway.SourceOf(by.Peer.Addr())].own.empties = time.Now().Add(time.Hour)
		if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); !errors.Is(err, gateway.ErrTimeout) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		_, _, _, events := w.seen()
		if len(events) != 3 || !strings.Contains(events[1], "WakeDelayed The wake takes longer than 30s: the addresses of its clients have used up their budget of wakes") {
			t.Errorf("events:\n%s", strings.Join(events, "\n"))
		}
	})
}

func waitingFor(reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: "postgres", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
}

func TestCauseOf_namesWhatTheWakeWaitsFor(t *testing.T) {
	t.Parallel()
	pod := func(change func(*corev1.Pod)) []corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "orders-1"}}
		change(&p)
		return []corev1.Pod{p}
	}
	in := func(status corev1.ContainerStatus) []corev1.Pod {
		return pod(func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{status} })
	}
	on := plan.Cluster{HibernationOn: true}
	for _, row := range []struct {
		rule    string
		cluster plan.Cluster
		pods    []corev1.Pod
		events  []corev1.Event
		want    string
	}{
		{"a pod that is still there", on, pod(func(*corev1.Pod) {}), nil, "pod orders-1 is still there"},
		{"an operator that does not hibernate", on, nil, nil, "has not said that it has hibernated"},
		{"hibernation, once the operator has", plan.Cluster{HibernationOn: true, Hibernated: true}, nil, nil, "the plugin cannot turn off the hibernation annotation"},
		{"an operator that makes no pod", plan.Cluster{}, nil, nil, "has made no pod"},
		{"a pod that goes", plan.Cluster{}, pod(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), nil, "PostgreSQL does not"},
		{"a pod without a node", plan.Cluster{}, pod(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes"}}
		}), nil, "cannot be scheduled: 0/1 nodes"},
		{"an image that cannot be pulled", plan.Cluster{}, in(waitingFor("ImagePullBackOff", "no such host")), nil, "image of container postgres of pod orders-1 cannot be pulled (ImagePullBackOff): no such host"},
		{"a container that crashes", plan.Cluster{}, in(waitingFor("CrashLoopBackOff", "back-off")), nil, "is crash-looping: back-off"},
		{"a volume", plan.Cluster{}, in(waitingFor("ContainerCreating", "")), []corev1.Event{
			{InvolvedObject: corev1.ObjectReference{Name: "orders-1"}, Reason: "FailedMount", Message: "timed out"},
			{InvolvedObject: corev1.ObjectReference{Name: "orders-1"}, Reason: "FailedAttachVolume", Message: "older", LastTimestamp: metav1.Time{}},
			{InvolvedObject: corev1.ObjectReference{Name: "orders-2"}, Reason: "FailedMount", Message: "another's", LastTimestamp: metav1.Now()},
		}, "is not available (FailedMount): timed out"},
		{"containers that are being made", plan.Cluster{}, in(waitingFor("ContainerCreating", "")), nil, "are being created"},
		{"PostgreSQL itself", plan.Cluster{}, in(corev1.ContainerStatus{}), nil, "PostgreSQL does not accept sessions yet"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got := causeOf(row.cluster, "orders-1", row.pods, row.events, &coordinationv1.Lease{}); !strings.Contains(got, row.want) {
				t.Errorf("got %q, want one that contains %q", got, row.want)
			}
		})
	}
}

func TestCauseOf_namesWhoHoldsTheLease(t *testing.T) {
	t.Parallel()
	const silent = "PostgreSQL does not accept sessions yet"
	runs := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "orders-1"}}
	standby := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "orders-2"}}
	leaves := *runs.DeepCopy()
	leaves.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	for _, row := range []struct {
		rule   string
		holder *string
		pod    corev1.Pod
		want   string
	}{
		{"a standby", ptr.To("orders-2"), runs, silent + "; the primary waits for Lease orders, which is held by orders-2"},
		{"who is no instance", ptr.To("orders-9"), runs, silent + "; the primary waits for Lease orders, which is held by orders-9"},
		{"not the primary itself", ptr.To("orders-1"), runs, silent},
		{"nor who has released it", ptr.To(""), runs, silent},
		{"nor where there is none", nil, runs, silent},
		{"nor where the pod is the cause", ptr.To("orders-2"), leaves, "pod orders-1 is being deleted"},
	} {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "orders"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: row.holder}}
		if got := causeOf(plan.Cluster{}, "orders-1", []corev1.Pod{row.pod, standby}, nil, lease); got != row.want {
			t.Errorf("%s: got %q, want %q", row.rule, got, row.want)
		}
	}
}
