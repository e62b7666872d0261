package wake

import (
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestRecordLongStop_saysOnceForWhatAStopWaits(t *testing.T) {
	t.Parallel()
	const begin = "PostgreSQL has not stopped within 30s, and clients are held until it has: "
	const hibernation = ". PostgreSQL waits for sessions to end, for at most spec.smartShutdownTimeout, and then for its WAL to be archived (condition ContinuousArchiving)"
	const doze = ". PostgreSQL waits for its WAL to be archived, for at most spec.switchoverDelay (condition ContinuousArchiving)"
	sleeps := func(c *cnpgv1.Cluster) {
		c.Annotations[contract.AnnotationHibernation] = "on"
		c.Annotations[contract.AnnotationAsleepSince] = time.Now().UTC().Format(time.RFC3339)
	}
	manual := func(c *cnpgv1.Cluster) { sleeps(c); c.Annotations[contract.AnnotationWake] = contract.WakeManual }
	hibernated := func(c *cnpgv1.Cluster) {
		sleeps(c)
		c.Status.Conditions = []metav1.Condition{{Type: contract.AnnotationHibernation, Status: metav1.ConditionTrue, Reason: "Hibernated"}}
	}
	dozesUnstopped := func(c *cnpgv1.Cluster) { dozes(c); delete(c.Annotations, contract.AnnotationPostgresStopped) }
	running := func(names ...string) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: orders.Namespace, Name: "orders-1", UID: "orders-1", OwnerReferences: ofOrders, Finalizers: []string{"example.org/test"},
			Labels: map[string]string{"cnpg.io/cluster": orders.Name, "cnpg.io/podRole": "instance"},
		}}
		for _, name := range names {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
		}
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: "scale-to-zero", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}})
		return pod
	}
	for _, row := range []struct {
		rule    string
		manager string
		cluster func(*cnpgv1.Cluster)
		pod     *corev1.Pod
		deleted bool
		want    string // empty: no Event
	}{
		{"the containers that still run", contract.FieldManager, sleeps, running("postgres", "archiver"), true, begin + "pod orders-1 still runs postgres, archiver" + hibernation},
		{"a kubelet that does not answer", contract.FieldManager, sleeps, running(), true, begin + "pod orders-1 still runs no container, and is being deleted" + hibernation},
		{"an operator that has not begun", contract.FieldManager, sleeps, running("postgres"), false, begin + "the operator has not deleted pod orders-1" + hibernation},
		{"an operator that does not go on", contract.FieldManager, sleeps, nil, false, begin + "the operator has not reported yet that every pod is deleted" + hibernation},
		{"nobody is held where connections wake nothing", contract.FieldManager, manual, running("postgres"), true, "PostgreSQL has not stopped within 30s: pod orders-1 still runs postgres" + hibernation},
		{"an instance manager that does not obey", contract.FieldManager, dozesUnstopped, running("postgres"), false, begin + "the instance manager of pod orders-1 has not stopped it" + doze},
		{"nothing of a cluster that has stopped", contract.FieldManager, hibernated, running("postgres"), true, ""},
		{"nothing of a doze that has stopped PostgreSQL", contract.FieldManager, dozes, running("postgres"), false, ""},
		{"nothing of a person's hibernation", "kubectl-edit", sleeps, running("postgres"), true, ""},
		{"nothing of an awake cluster", contract.FieldManager, wakes, running("postgres"), true, ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.manager = row.manager
				a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
				w.cluster(row.cluster)
				if row.pod != nil {
					w.put(row.pod)
				}
				if row.deleted {
					if err := w.api.Delete(t.Context(), row.pod); err != nil {
						t.Fatal(err)
					}
				}
				if again := a.read(); len(w.events()) != 0 || row.want != "" && (again <= 0 || again > plan.LongStop) {
					t.Errorf("looked at again in %s; Events %v", again, w.events())
				}
				pass(t, plan.LongStop+time.Second)
				w.eventless = true
				if _, err := a.Reconcile(t.Context(), ctrl.Request{NamespacedName: orders}); (err != nil) != (row.want != "") {
					t.Errorf("an Event that cannot be written is %v", err)
				}
				w.eventless = false
				for range 2 {
					a.read()
					b.read()
				}
				var told []string
				for _, e := range w.events() {
					if e.Reason == "StopDelayed" && e.Type == corev1.EventTypeWarning {
						told = append(told, e.Message)
					}
				}
				switch {
				case row.want == "" && len(told) == 0:
				case len(told) != 1 || told[0] != row.want:
					t.Errorf("told %q, want %q", told, row.want)
				}
			})
		})
	}
}
