package command

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// requested reports whether a patch requests sleep.
func requested(annotations map[string]*string) bool {
	value, there := annotations[contract.AnnotationSleepRequested]
	return there && value != nil
}

// obey puts the cluster to sleep like the sidecar and the operator: first the annotation, then the pods, then the condition.
func (w *world) obey(after time.Duration) func(map[string]*string) {
	return func(annotations map[string]*string) {
		if !requested(annotations) {
			return
		}
		time.Sleep(after) // the bubble's clock
		w.change("orders", func(c *cnpgv1.Cluster) {
			asleep(c)
			condition("DeletingPods")(c)
			delete(c.Annotations, contract.AnnotationSleepRequested)
		})
		time.Sleep(2 * time.Second)
		w.change("orders", condition("Hibernated"))
	}
}

func TestSleep(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change  func(*cnpgv1.Cluster)
		prepare func(*world)
		// left is the annotation's value at the end.
		left string
	}{
		"asleep": {nil, func(w *world) { w.patched = w.obey(3 * time.Second) }, ""},
		"asleep-after-a-blocker": {nil, func(w *world) {
			w.reports["orders-1"] = busy("active")
			w.patched = func(annotations map[string]*string) {
				if !requested(annotations) {
					return
				}
				time.Sleep(5 * time.Second)
				w.mutex.Lock()
				w.reports["orders-1"] = withBlockers(idling(0), "minimum_uptime")
				w.mutex.Unlock()
				w.obey(5 * time.Second)(annotations)
			}
		}, ""},
		"unreadable": {nil, func(w *world) {
			w.patched = func(annotations map[string]*string) {
				if requested(annotations) {
					time.Sleep(lookEvery / 2) // between two reads
					w.mutex.Lock()
					w.lost = 119 // every read from here to the timeout
					w.mutex.Unlock()
				}
			}
		}, ""},
		"announced": {nil, func(w *world) {
			w.patched = func(annotations map[string]*string) {
				if !requested(annotations) {
					return
				}
				announce := func(value string) { w.annotate("orders", map[string]*string{contract.AnnotationAnnounced: &value}) }
				announce("uid " + time.Now().Add(5*time.Second).UTC().Format(time.RFC3339))
				time.Sleep(10 * time.Second)
				announce("uid " + time.Now().Add(30*time.Second).UTC().Format(time.RFC3339))
				w.obey(3 * time.Second)(annotations)
			}
		}, ""},
		"blocked":            {nil, func(w *world) { w.reports["orders-1"] = busy("active", "backup_running") }, ""},
		"nothing-in-the-way": {nil, func(*world) {}, ""},
		"withdrawn": {nil, func(w *world) {
			w.patched = func(annotations map[string]*string) {
				if !requested(annotations) {
					return
				}
				w.change("orders", func(c *cnpgv1.Cluster) { c.Annotations[contract.AnnotationHibernation] = "on" })
				time.Sleep(1500 * time.Millisecond)
				w.change("orders", func(c *cnpgv1.Cluster) { delete(c.Annotations, contract.AnnotationHibernation) })
			}
		}, ""},
		"operator-away": {nil, func(w *world) {
			w.patched = func(annotations map[string]*string) {
				if requested(annotations) {
					w.change("orders", func(c *cnpgv1.Cluster) { c.Annotations[contract.AnnotationHibernation] = "on" })
				}
			}
		}, ""},
		"refused-annotation": {nil, func(w *world) {
			w.patched = func(annotations map[string]*string) {
				if requested(annotations) {
					w.mutex.Lock()
					w.reports["orders-1"] = busy("invalid_annotation")
					w.mutex.Unlock()
				}
			}
		}, ""},
		"dozing-on": {dozing, func(w *world) { w.reports["orders-1"] = withBlockers(idling(time.Minute), "dozing") }, ""},
		"dozes-meanwhile": {nil, func(w *world) {
			w.reports["orders-1"] = withBlockers(idling(0), "minimum_uptime")
			w.patched = func(annotations map[string]*string) {
				if requested(annotations) {
					time.Sleep(30*time.Second + lookEvery/2)
					w.change("orders", func(c *cnpgv1.Cluster) {
						dozing(c)
						c.Annotations[contract.AnnotationDozingSince] = time.Now().UTC().Format(time.RFC3339)
					})
				}
			}
		}, ""},
		"dozing": {dozing, func(w *world) {
			w.reports["orders-1"] = withBlockers(idling(time.Minute), "dozing")
			w.patched = w.obey(3 * time.Second)
		}, ""},
		"kept-awake": {with(map[string]string{contract.AnnotationKeepAwakeUntil: "2000-01-01T02:00:00Z"}), nil, ""},
		"dozing-in-a-window": {func(c *cnpgv1.Cluster) {
			dozing(c)
			c.Annotations[contract.AnnotationKeepAwake] = "Mon-Sun 00:00-24:00 Etc/UTC"
		}, nil, ""},
		"already":         {asleep, nil, ""},
		"already-by-hand": {byHand, nil, ""},
		"already-going":   {func(c *cnpgv1.Cluster) { asleep(c); condition("DeletingPods")(c) }, nil, ""},
		"older-sidecar": {nil, func(w *world) {
			older := idling(time.Minute)
			older.AcceptsSleepRequests = false
			w.reports["orders-1"] = older
		}, ""},
		"silent-sidecar": {nil, func(w *world) { w.hangs["orders-1"] = true }, ""},
		"disabled":       {with(map[string]string{contract.AnnotationEnabled: "false"}), nil, ""},
		"bad":            {with(map[string]string{contract.AnnotationWake: "maybe"}), nil, ""},
		"maintenance":    {maintained, nil, ""},
		"primaryless":    {func(c *cnpgv1.Cluster) { c.Status = cnpgv1.ClusterStatus{} }, nil, ""},
		"conflicts":      {nil, func(w *world) { w.conflicts, w.patched = 3, w.obey(time.Second) }, ""},
		"conflicts-on":   {nil, func(w *world) { w.conflicts = 1000 }, ""},
		"api-restarts": {nil, func(w *world) {
			w.patched = func(annotations map[string]*string) {
				w.mutex.Lock()
				w.lost = 3
				w.mutex.Unlock()
				time.Sleep(4 * time.Second)
				w.obey(0)(annotations)
			}
		}, ""},
		"requested-anew": {nil, func(w *world) {
			w.patched = func(annotations map[string]*string) {
				if requested(annotations) {
					w.annotate("orders", map[string]*string{contract.AnnotationSleepRequested: &later})
				}
			}
		}, later},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				orders := cluster("orders")
				if row.change != nil {
					row.change(orders)
				}
				w := newWorld(t, orders)
				w.managers[client.ObjectKeyFromObject(orders)] = contract.FieldManager
				if name == "already-by-hand" {
					w.managers[client.ObjectKeyFromObject(orders)] = "kubectl"
				}
				if name == "already-going" {
					go func() {
						time.Sleep(3 * time.Second) // the bubble's clock
						w.change("orders", condition("Hibernated"))
					}()
				}
				w.reports["orders-1"] = idling(time.Minute)
				if row.prepare != nil {
					row.prepare(w)
				}
				arguments := []string{"sleep", "orders"}
				if name == "unreadable" {
					arguments = append(arguments, "--timeout", "119500ms") // not when it reads
				}
				golden(t, "sleep-"+name+".txt", w.run(t.Context(), arguments...))
				if left := w.annotations()[contract.AnnotationSleepRequested]; left != row.left {
					t.Errorf("the annotation is left: %q, want %q", left, row.left)
				}
				for _, patch := range w.patches {
					if strings.Contains(patch, contract.AnnotationHibernation) {
						t.Errorf("it changed the hibernation annotation: %s", patch)
					}
				}
			})
		})
	}
	t.Run("for programs", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(t *testing.T) {
			w := newWorld(t, cluster("orders"))
			w.managers[client.ObjectKeyFromObject(cluster("orders"))] = contract.FieldManager
			w.reports["orders-1"] = busy("active")
			blocked := w.run(t.Context(), "sleep", "orders", "-o", "json", "--timeout", "10s")
			w.reports["orders-1"], w.patched = idling(0), w.obey(time.Second)
			golden(t, "sleep.json", blocked+w.run(t.Context(), "sleep", "orders", "-o", "json"))
		})
	})
	t.Run("interrupted it takes the annotation away", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(t *testing.T) {
			w := newWorld(t, cluster("orders"))
			w.reports["orders-1"] = busy("active")
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(3*time.Second, cancel)
			golden(t, "sleep-interrupted.txt", w.run(ctx, "sleep", "orders"))
			if left := w.annotations()[contract.AnnotationSleepRequested]; left != "" {
				t.Errorf("the annotation is left: %q", left)
			}
		})
	})
}

var later = "2000-01-01T00:00:05Z"

func TestNextStepOfAWake(t *testing.T) {
	t.Parallel()
	there := *pod("orders", "orders-1", time.Hour, true)
	going := there
	going.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	on := func(c *cnpgv1.Cluster) {
		c.Annotations[contract.AnnotationHibernation], c.Status.Phase = "on", cnpgv1.PhaseHealthy
	}
	unhealthy := func(c *cnpgv1.Cluster) { c.Status.Phase = cnpgv1.PhaseWaitingForInstancesToBeActive }
	for _, row := range []struct {
		rule    string
		changes []func(*cnpgv1.Cluster)
		pods    []corev1.Pod
		unknown bool
		want    step
	}{
		{"hibernation that is off is left alone", nil, []corev1.Pod{there}, false, stepDone},
		{"once every pod has gone it is turned off", []func(*cnpgv1.Cluster){asleep}, nil, false, stepEndHibernation},
		{"a person's too", []func(*cnpgv1.Cluster){byHand}, nil, false, stepEndHibernation},
		{"not while a pod is left", []func(*cnpgv1.Cluster){asleep}, []corev1.Pod{going}, false, stepAwaitPodsDeleted},
		{"not while the operator deletes pods", []func(*cnpgv1.Cluster){on, condition("DeletingPods")}, []corev1.Pod{there}, false, stepAwaitPodsDeleted},
		{"nor while it waits for one", []func(*cnpgv1.Cluster){on, condition("WaitingPodsDeletion")}, []corev1.Pod{going}, false, stepAwaitPodsDeleted},
		{"nor between the last pod and the condition", []func(*cnpgv1.Cluster){on, condition("WaitingPodsDeletion")}, nil, false, stepAwaitPodsDeleted},
		{"before the operator has begun it is", []func(*cnpgv1.Cluster){on}, []corev1.Pod{there}, false, stepEndHibernation},
		{"and while it waits for a healthy cluster", []func(*cnpgv1.Cluster){on, unhealthy, condition("WaitingForHealthy")}, []corev1.Pod{there}, false, stepEndHibernation},
		{"not once that is healthy, because the operator says so only later", []func(*cnpgv1.Cluster){on, condition("WaitingForHealthy")}, []corev1.Pod{there}, false, stepAwaitPodsDeleted},
		{"unless a pod is being deleted already", []func(*cnpgv1.Cluster){on}, []corev1.Pod{there, going}, false, stepAwaitPodsDeleted},
		{"a wake that may have the operator delete volumes is refused", []func(*cnpgv1.Cluster){asleep, maintained}, nil, false, stepRefuse},
		{"also of what a person put to sleep", []func(*cnpgv1.Cluster){byHand, maintained}, nil, false, stepRefuse},
		{"also while the pods are being deleted", []func(*cnpgv1.Cluster){on, maintained, condition("DeletingPods")}, []corev1.Pod{going}, false, stepRefuse},
		{"and where none is left before the operator says so", []func(*cnpgv1.Cluster){on, maintained}, nil, false, stepRefuse},
		{"pods that are not being deleted yet may stay", []func(*cnpgv1.Cluster){on, maintained}, []corev1.Pod{there}, false, stepEndHibernation},
		{"what is not known is waited for", []func(*cnpgv1.Cluster){asleep}, nil, true, stepAwaitPodsDeleted},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got := see(cluster("orders", row.changes...), row.pods, !row.unknown, time.Now()).next(); got != row.want {
				t.Errorf("step %q, want %q", got, row.want)
			}
		})
	}
}

func TestWake(t *testing.T) {
	t.Parallel()
	// start creates the pod like the operator, once hibernation is off.
	start := func(w *world) func(map[string]*string) {
		return func(annotations map[string]*string) {
			if _, there := annotations[contract.AnnotationHibernation]; !there {
				return
			}
			time.Sleep(500 * time.Millisecond) // the bubble's clock
			w.change("orders", func(c *cnpgv1.Cluster) { c.Status.Conditions = nil })
			made := pod("orders", "orders-1", 0, false)
			if err := w.api.Create(context.Background(), made); err != nil {
				w.t.Error(err)
			}
			for _, change := range []func(){
				func() { made.Spec.NodeName, made.Status.Phase = "node-1", corev1.PodPending },
				func() { made.Status.Phase = corev1.PodRunning },
			} {
				time.Sleep(1500 * time.Millisecond)
				change()
				spec := made.Spec
				// First the status: the command may look in between, and a pod that has a node and no phase yet is none of the states.
				if err := w.api.Status().Update(context.Background(), made); err != nil {
					w.t.Error(err)
				}
				made.Spec = spec
				if err := w.api.Update(context.Background(), made); err != nil {
					w.t.Error(err)
				}
			}
			time.Sleep(1500 * time.Millisecond)
			made.Status.Conditions[0].Status = corev1.ConditionTrue
			if err := w.api.Status().Update(context.Background(), made); err != nil {
				w.t.Error(err)
			}
		}
	}
	for name, row := range map[string]struct {
		change    func(*cnpgv1.Cluster)
		pods      []client.Object
		prepare   func(*world)
		arguments string
		still     bool // hibernation is on at the end
	}{
		"asleep":      {asleep, nil, nil, "wake orders", false},
		"by-hand":     {byHand, nil, nil, "wake orders", false},
		"and-wait":    {asleep, nil, func(w *world) { w.patched = start(w) }, "wake orders --wait", false},
		"json":        {asleep, nil, func(w *world) { w.patched = start(w) }, "wake orders --wait -o json", false},
		"never-ready": {asleep, nil, nil, "wake orders --wait --timeout 1m", false},
		"awake":       {nil, []client.Object{pod("orders", "orders-1", time.Hour, true)}, nil, "wake orders --wait", false},
		"while-pods-go": {func(c *cnpgv1.Cluster) { asleep(c); condition("WaitingPodsDeletion")(c) }, nil, func(w *world) {
			go func() {
				time.Sleep(5 * time.Second) // the bubble's clock
				w.change("orders", condition("Hibernated"))
			}()
		}, "wake orders", false},
		"about-to-sleep": {announced, []client.Object{pod("orders", "orders-1", time.Hour, true)}, func(w *world) {
			time.AfterFunc(3*time.Second+lookEvery/2, func() { // between two looks: the command patches what it sees
				if err := w.api.Delete(context.Background(), pod("orders", "orders-1", time.Hour, true)); err != nil {
					w.t.Error(err)
				}
				w.change("orders", asleep)
			})
		}, "wake orders", false},
		"announced-in-vain": {announced, []client.Object{pod("orders", "orders-1", time.Hour, true)}, nil, "wake orders --wait", false},
		"pods-stay":         {func(c *cnpgv1.Cluster) { asleep(c); condition("WaitingPodsDeletion")(c) }, nil, nil, "wake orders --timeout 30s", true},
		"before-it-began":   {func(c *cnpgv1.Cluster) { asleep(c); c.Status.Conditions = nil }, []client.Object{pod("orders", "orders-1", time.Hour, true)}, nil, "wake orders --wait", false},
		"maintenance":       {func(c *cnpgv1.Cluster) { asleep(c); maintained(c) }, nil, nil, "wake orders", true},
		"conflicts":         {asleep, nil, func(w *world) { w.conflicts = 2 }, "wake orders", false},
		"pods-are-a-secret": {asleep, nil, func(w *world) { w.denied = true }, "wake orders", true},
		"never-read":        {asleep, nil, func(w *world) { w.lost = 5 }, "wake orders --timeout 4500ms", true}, // as often as it looks
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				orders := cluster("orders")
				if row.change != nil {
					row.change(orders)
				}
				w := newWorld(t, append([]client.Object{orders}, row.pods...)...)
				if row.prepare != nil {
					row.prepare(w)
				}
				golden(t, "wake-"+name+".txt", w.run(t.Context(), strings.Fields(row.arguments)...))
				left := w.annotations()
				if _, still := left[contract.AnnotationHibernation]; still != row.still {
					t.Errorf("hibernation is left: %t, want %t", still, row.still)
				}
				if _, mark := left[contract.AnnotationAsleepSince]; !row.still && mark {
					t.Errorf("a mark is left: %v", left)
				}
			})
		})
	}
}

func TestWake_endsADoze(t *testing.T) {
	t.Parallel()
	stopping := func(c *cnpgv1.Cluster) {
		dozing(c)
		c.Annotations[contract.AnnotationDozingSince] = time.Now().Add(-time.Second).UTC().Format(time.RFC3339)
		delete(c.Annotations, contract.AnnotationPostgresStopped)
	}
	hibernated := func(c *cnpgv1.Cluster) { dozing(c); asleep(c) }
	for name, row := range map[string]struct {
		change    func(*cnpgv1.Cluster)
		pods      bool
		prepare   func(*world)
		arguments string
		fence     bool // it is left at the end
		marks     bool // those of the doze are left for the sidecar
	}{
		"dozing":           {dozing, true, nil, "wake orders", false, true},
		"dozing-disabled":  {func(c *cnpgv1.Cluster) { dozing(c); c.Annotations[contract.AnnotationEnabled] = "false" }, true, nil, "wake orders", false, true},
		"dozing-conflicts": {dozing, true, func(w *world) { w.conflicts = 2 }, "wake orders", false, true},
		"dozing-and-wait": {stopping, true, func(w *world) {
			stopped := "uid"
			time.AfterFunc(1500*time.Millisecond, func() { w.annotate("orders", map[string]*string{contract.AnnotationPostgresStopped: &stopped}) })
			w.patched = func(annotations map[string]*string) {
				time.Sleep(1500 * time.Millisecond) // the bubble's clock
				serving := pod("orders", "orders-1", time.Hour, true)
				if err := w.api.Status().Update(context.Background(), serving); err != nil {
					w.t.Error(err)
				}
			}
		}, "wake orders --wait", false, true},
		"dozing-not-stopped": {stopping, true, nil, "wake orders --timeout 10s", true, false},
		"dozing-hibernated":  {hibernated, false, nil, "wake orders", false, false},
		"fenced":             {fenced, true, nil, "wake orders", true, false},
		"fenced-hibernated":  {func(c *cnpgv1.Cluster) { fenced(c); byHand(c) }, false, func(w *world) { w.managers[types.NamespacedName{Namespace: "shop", Name: "orders"}] = "kubectl-cnpg" }, "wake orders", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				orders := cluster("orders")
				row.change(orders)
				objects := []client.Object{orders}
				if row.pods {
					objects = append(objects, withdrawing(pod("orders", "orders-1", time.Hour, false)))
				}
				w := newWorld(t, objects...)
				if row.prepare != nil {
					row.prepare(w)
				}
				golden(t, "wake-"+name+".txt", w.run(t.Context(), strings.Fields(row.arguments)...))
				left := w.annotations()
				if _, fence := left[contract.AnnotationFencedInstances]; fence != row.fence {
					t.Errorf("the fence is left: %t, want %t", fence, row.fence)
				}
				if _, there := left[contract.AnnotationLastWake]; !row.fence && there {
					t.Errorf("another wake is left: %v", left)
				}
				for _, mark := range []string{contract.AnnotationDozingSince, contract.AnnotationPostgresStopped} { // a sidecar watches the start
					if _, there := left[mark]; !row.fence && there != row.marks {
						t.Errorf("%s is left: %t, want %t", mark, there, row.marks)
					}
				}
				for _, patch := range w.patches {
					if !strings.Contains(patch, "resourceVersion") {
						t.Errorf("it patched whatever others did: %s", patch)
					}
				}
			})
		})
	}
}

func TestKeepAwakeAndRelease(t *testing.T) {
	t.Parallel()
	const tomorrow = "2000-01-02T00:00:00Z"
	for name, row := range map[string]struct {
		change    func(*cnpgv1.Cluster)
		conflicts int
		arguments string
		want      string
	}{
		"two-hours":      {nil, 0, "keep-awake orders 2h", "2000-01-01T02:00:00Z"},
		"json":           {nil, 0, "keep-awake orders 90m -o json", "2000-01-01T01:30:00Z"},
		"a-week":         {nil, 0, "keep-awake orders 168h", "2000-01-07T23:59:00Z"},
		"less":           {with(map[string]string{contract.AnnotationKeepAwakeUntil: tomorrow}), 0, "keep-awake orders 2h", tomorrow},
		"more":           {with(map[string]string{contract.AnnotationKeepAwakeUntil: tomorrow}), 0, "keep-awake orders 2d", "2000-01-03T00:00:00Z"},
		"over-a-mistake": {with(map[string]string{contract.AnnotationKeepAwakeUntil: "x"}), 0, "keep-awake orders 2h", "2000-01-01T02:00:00Z"},
		"asleep":         {asleep, 0, "keep-awake orders 2h", "2000-01-01T02:00:00Z"},
		"dozing":         {dozing, 0, "keep-awake orders 2h", "2000-01-01T02:00:00Z"},
		"disabled":       {with(map[string]string{contract.AnnotationEnabled: "false"}), 0, "keep-awake orders 2h", "2000-01-01T02:00:00Z"},
		"conflicts":      {nil, 2, "keep-awake orders 2h", "2000-01-01T02:00:00Z"},
		"release":        {with(map[string]string{contract.AnnotationKeepAwakeUntil: tomorrow}), 0, "release orders", ""},
		"release-json":   {with(map[string]string{contract.AnnotationKeepAwakeUntil: tomorrow}), 0, "release orders -o json", ""},
		"release-none":   {nil, 0, "release orders", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				orders := cluster("orders")
				if row.change != nil {
					row.change(orders)
				}
				w := newWorld(t, orders)
				w.conflicts = row.conflicts
				golden(t, "keep-"+name+".txt", w.run(t.Context(), strings.Fields(row.arguments)...))
				got := w.annotations()[contract.AnnotationKeepAwakeUntil]
				if diff := cmp.Diff(row.want, got); diff != "" {
					t.Errorf("until (-want +got):\n%s", diff)
				}
				if _, problems := idle.ParsePolicy(map[string]string{contract.AnnotationKeepAwakeUntil: got}, time.Now().Add(-30*time.Second)); got != "" && len(problems) != 0 {
					t.Errorf("a sidecar whose clock is behind does not understand it: %v", problems)
				}
			})
		})
	}
}

// Refusals by the API server are final, temporary errors are retried.
func TestPassing(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		err  error
		want bool
	}{
		{apierrors.NewServiceUnavailable("x"), true},
		{apierrors.NewTooManyRequestsError("x"), true},
		{apierrors.NewUnauthorized("x"), false},
		{context.DeadlineExceeded, true},
		{errors.New("x"), false},
		{contract.ErrInvalidReport, false},
	} {
		if got := passing(row.err); got != row.want {
			t.Errorf("%v passes: %t", row.err, got)
		}
	}
}
