package command

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // for the whole process, as main does
	goleak.VerifyTestMain(m)
}

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
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

// world is a Kubernetes cluster with an operator and sidecars controlled by the test. It runs in a synctest bubble.
type world struct {
	t   *testing.T
	api client.Client

	mutex     sync.Mutex
	patches   []string
	conflicts int // how many patches conflict
	managers  map[types.NamespacedName]string
	reports   map[string]contract.Report // by pod
	silence   map[string]error           // by pod
	hangs     map[string]bool
	denied    bool                          // pods may not be listed
	unlisted  bool                          // ScheduledBackups may not be listed
	lost      int                           // how many reads of a Cluster fail
	lostBy    error                         // by what, if not by an answer of the API server
	lists     []error                       // errors of the next lists of Clusters
	listed    func()                        // called at every list of Clusters
	patched   func(map[string]*string)      // called with the patched annotations, in a goroutine
	looked    func(*world, *cnpgv1.Cluster) // called at every read of a Cluster
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, cnpgv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{
		t: t, managers: map[types.NamespacedName]string{}, reports: map[string]contract.Report{}, silence: map[string]error{}, hangs: map[string]bool{},
	}
	for _, o := range objects { // the fake API server manages field managers itself
		for _, entry := range o.GetManagedFields() {
			w.managers[client.ObjectKeyFromObject(o)] = entry.Manager
		}
		o.SetManagedFields(nil)
	}
	own := func(c *cnpgv1.Cluster) {
		if manager := w.managers[client.ObjectKeyFromObject(c)]; manager != "" && (c.Annotations[contract.AnnotationHibernation] != "" || c.Annotations[contract.AnnotationFencedInstances] != "") {
			c.ManagedFields = owned(manager)
		}
	}
	w.api = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&cnpgv1.Cluster{}).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			w.mutex.Lock()
			lost, lostBy, looked := w.lost > 0, w.lostBy, w.looked
			w.lost--
			w.mutex.Unlock()
			if lost && lostBy != nil {
				return lostBy
			}
			if lost {
				return apierrors.NewServiceUnavailable("it starts")
			}
			if err := c.Get(ctx, key, o, options...); err != nil {
				return err
			}
			if cluster, ok := o.(*cnpgv1.Cluster); ok {
				own(cluster)
				if looked != nil {
					looked(w, cluster)
				}
			}
			return nil
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if _, ok := list.(*corev1.PodList); ok && w.denied {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no"))
			}
			if _, ok := list.(*cnpgv1.ScheduledBackupList); ok && w.unlisted {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "scheduledbackups"}, "", errors.New("no"))
			}
			if _, ok := list.(*cnpgv1.ClusterList); ok {
				if err := w.list(); err != nil {
					return err
				}
			}
			err := c.List(ctx, list, options...)
			if clusters, ok := list.(*cnpgv1.ClusterList); ok {
				for i := range clusters.Items {
					own(&clusters.Items[i])
				}
			}
			return err
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			w.mutex.Lock()
			w.conflicts--
			conflict := w.conflicts >= 0
			w.mutex.Unlock()
			if conflict {
				return apierrors.NewConflict(schema.GroupResource{Resource: "clusters"}, o.GetName(), errors.New("changed"))
			}
			if err := c.Patch(ctx, o, patch, options...); err != nil {
				if patch.Type() == types.JSONPatchType { // what the API server answers if a test operation fails
					return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
				}
				return err
			}
			body, err := patch.Data(o)
			if err != nil {
				return err
			}
			var sent struct {
				Metadata struct {
					Annotations map[string]*string `json:"annotations"`
				} `json:"metadata"`
			}
			w.mutex.Lock()
			w.patches = append(w.patches, string(body))
			then := w.patched
			w.mutex.Unlock()
			if then != nil && json.Unmarshal(body, &sent) == nil {
				go then(sent.Metadata.Annotations)
			}
			return nil
		},
	}).Build()
	return w
}

// list returns the error of the next list of Clusters.
func (w *world) list() error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.listed != nil {
		w.listed()
	}
	if len(w.lists) == 0 {
		return nil
	}
	err := w.lists[0]
	w.lists = w.lists[1:]
	return err
}

// report answers like a sidecar.
func (w *world) report(ctx context.Context, i instance) (contract.Report, error) {
	w.mutex.Lock()
	report, there := w.reports[i.pod]
	err, hangs := w.silence[i.pod], w.hangs[i.pod]
	w.mutex.Unlock()
	switch {
	case hangs:
		<-ctx.Done()
		return contract.Report{}, fmt.Errorf("ask %s: %w", i.pod, ctx.Err())
	case err != nil:
		return contract.Report{}, err
	case !there:
		return contract.Report{}, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, i.pod)
	}
	report.Cluster, report.Pod = i.cluster, i.pod
	return report, nil
}

// run runs a command line and returns what a terminal would show.
func (w *world) run(ctx context.Context, arguments ...string) string {
	var out strings.Builder
	log := w.runInto(ctx, &out, arguments...)
	return "$ " + called + " " + strings.Join(arguments, " ") + "\n" + out.String() + log
}

// runInto runs a command line with that output and returns what else it prints, and the exit code.
func (w *world) runInto(ctx context.Context, out io.Writer, arguments ...string) (text string) {
	var log strings.Builder
	p := &program{
		Streams: Streams{Out: out, Err: &log, Getenv: func(string) string { return "" }},
		connect: func() (*access, error) {
			return &access{client: w.api, namespace: "shop", resource: cnpgv1.SchemeGroupVersion, report: w.report}, nil
		},
	}
	flags := genericclioptions.NewConfigFlags(true)
	flags.CacheDir = nil
	code := p.run(ctx, arguments, flags)
	for line := range strings.Lines(log.String()) {
		text += "! " + line
	}
	return text + fmt.Sprintf("= %d\n", code)
}

// annotate sets or removes annotations on behalf of another client.
func (w *world) annotate(name string, annotations map[string]*string) {
	w.change(name, func(c *cnpgv1.Cluster) {
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		for key, value := range annotations {
			if value == nil {
				delete(c.Annotations, key)
			} else {
				c.Annotations[key] = *value
			}
		}
	})
}

// change changes a Cluster, including its status.
func (w *world) change(name string, change func(*cnpgv1.Cluster)) {
	ctx := context.Background()
	var c cnpgv1.Cluster
	if err := w.api.Get(ctx, types.NamespacedName{Namespace: "shop", Name: name}, &c); err != nil {
		w.t.Error(err)
		return
	}
	change(&c)
	status := c.Status
	if err := w.api.Update(ctx, &c); err != nil {
		w.t.Error(err)
	}
	c.Status = status
	if err := w.api.Status().Update(ctx, &c); err != nil {
		w.t.Error(err)
	}
}

// annotations returns the current annotations of the Cluster orders.
func (w *world) annotations() map[string]string {
	var c cnpgv1.Cluster
	if err := w.api.Get(context.Background(), types.NamespacedName{Namespace: "shop", Name: "orders"}, &c); err != nil {
		w.t.Error(err)
	}
	return c.Annotations
}

func owned(manager string) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{Manager: manager, FieldsV1: &metav1.FieldsV1{
		Raw: []byte(`{"f:metadata":{"f:annotations":{"f:cnpg.io/hibernation":{},"f:cnpg.io/fencedInstances":{},"f:scale-to-zero.xata.io/counts":{}}}}`),
	}}}
}

// cluster is an awake cluster that lists the plugin.
func cluster(name string, changes ...func(*cnpgv1.Cluster)) *cnpgv1.Cluster {
	c := &cnpgv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: map[string]string{contract.AnnotationEnabled: "true"}},
		Spec:       cnpgv1.ClusterSpec{Instances: 1, Plugins: []cnpgv1.PluginConfiguration{{Name: contract.PluginName}}},
		Status:     cnpgv1.ClusterStatus{CurrentPrimary: name + "-1", InstanceNames: []string{name + "-1"}, Phase: cnpgv1.PhaseHealthy},
	}
	for _, change := range changes {
		change(c)
	}
	return c
}

func with(annotations map[string]string) func(*cnpgv1.Cluster) {
	return func(c *cnpgv1.Cluster) { maps.Copy(c.Annotations, annotations) }
}

// requesting has three instances that request CPU and memory.
func requesting(c *cnpgv1.Cluster) {
	c.Spec.Instances = 3
	c.Spec.Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("1Gi"),
	}
}

// condition sets the operator's hibernation condition.
func condition(reason string) func(*cnpgv1.Cluster) {
	status := metav1.ConditionFalse
	if reason == "Hibernated" {
		status = metav1.ConditionTrue
	}
	return func(c *cnpgv1.Cluster) {
		c.Status.Conditions = []metav1.Condition{{
			Type: contract.AnnotationHibernation, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour)),
		}}
	}
}

// asleep is a cluster that this project put to sleep two hours ago.
func asleep(c *cnpgv1.Cluster) {
	c.Annotations[contract.AnnotationHibernation] = "on"
	c.Annotations[contract.AnnotationAsleepSince] = time.Now().Add(-2 * time.Hour).UTC().Format(time.RFC3339)
	c.Annotations[contract.AnnotationAsleepReason] = "idle since 1999-12-31T21:30:00Z"
	c.ManagedFields = owned(contract.FieldManager)
	condition("Hibernated")(c)
}

// announced is a cluster that is about to sleep.
func announced(c *cnpgv1.Cluster) {
	c.Annotations[contract.AnnotationAnnounced] = "uid " + time.Now().Add(20*time.Second).UTC().Format(time.RFC3339)
}

// dozing is a cluster that has dozed for ten minutes, and hibernates after an hour without use.
func dozing(c *cnpgv1.Cluster) {
	with(toDoze)(c)
	c.Annotations[contract.AnnotationFencedInstances] = contract.FencedInstancesAll
	c.Annotations[contract.AnnotationDozingSince] = time.Now().Add(-10 * time.Minute).UTC().Format(time.RFC3339)
	c.Annotations[contract.AnnotationPostgresStopped] = "uid"
	c.ManagedFields = owned(contract.FieldManager)
}

// toDoze has a cluster doze after five minutes, with the threshold of its Namespace.
var toDoze = map[string]string{contract.AnnotationDozeMinutes: "5", contract.AnnotationDefaults: `{"xata.io/scale-to-zero-inactivity-minutes":"60"}`}

// fenced is a cluster that a person fenced.
func fenced(c *cnpgv1.Cluster) {
	c.Annotations[contract.AnnotationFencedInstances] = contract.FencedInstancesAll
	c.ManagedFields = owned("kubectl-cnpg")
}

// withdrawing gives the pod's sidecar the readiness probe that a doze needs.
func withdrawing(p *corev1.Pod) *corev1.Pod {
	p.Spec.NodeName, p.Status.Phase = "node-1", corev1.PodRunning
	p.Spec.Containers = []corev1.Container{{Name: container, Env: []corev1.EnvVar{{Name: contract.EnvReadinessPort, Value: "9190"}}}}
	return p
}

// byHand is a cluster that a person put to sleep.
func byHand(c *cnpgv1.Cluster) {
	c.Annotations[contract.AnnotationHibernation] = "on"
	c.ManagedFields = owned("kubectl-annotate")
	condition("Hibernated")(c)
}

// maintained starts a node maintenance window in which the operator deletes the volumes of an instance that cannot be
// scheduled.
func maintained(c *cnpgv1.Cluster) {
	c.Spec.NodeMaintenanceWindow = &cnpgv1.NodeMaintenanceWindow{InProgress: true, ReusePVC: new(bool)}
}

// pod is an instance of a cluster.
func pod(cluster, name string, age time.Duration, isReady bool) *corev1.Pod {
	status := corev1.ConditionFalse
	if isReady {
		status = corev1.ConditionTrue
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-age)),
			Labels: map[string]string{"cnpg.io/cluster": cluster, "cnpg.io/podRole": "instance"},
		},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}},
	}
}

// idling is the report of an idle instance.
func idling(since time.Duration) contract.Report {
	start, due, seconds := time.Now().Add(-since).UTC(), time.Now().Add(30*time.Minute-since).UTC(), since.Seconds()
	return contract.Report{
		Version: contract.ReportVersion, Known: true, SocketEvents: true, AcceptsSleepRequests: true, IdleSince: &start, IdleForSeconds: &seconds, LastActivity: &start,
		SleepDue: &due, Reason: "waiting", Blockers: []string{"waiting"}, Rules: contract.ReportedRules{Enabled: true, ThresholdSeconds: 1800},
	}
}

// busy is the report of an instance in use.
func busy(blockers ...string) contract.Report {
	now := time.Now().UTC()
	return contract.Report{
		Version: contract.ReportVersion, Known: true, Active: true, SocketEvents: true, AcceptsSleepRequests: true, Sessions: map[string]int{"active": 1, "idle": 3, "disabled": 0},
		LastActivity: &now, LastUnseenClient: "10.0.0.9", Reason: blockers[0], Blockers: blockers,
	}
}

// bubble runs a test in a synctest bubble, whose clock starts at midnight of January 1, 2000.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

func withBlockers(r contract.Report, blockers ...string) contract.Report {
	r.Reason, r.Blockers = blockers[0], blockers
	return r
}
