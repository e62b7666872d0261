package kubernetes_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/internal/apiservertest"
	"github.com/cnpg-i/scale-to-zero/plugin/fleet"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/doze"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
)

// patience bounds every wait; a passing test never reaches it.
const patience = 2 * time.Minute

// TestClient_onAnAPIServer runs a client with exactly the rights of a sidecar.
func TestClient_onAnAPIServer(t *testing.T) {
	t.Parallel()
	config := apiservertest.Start(t, "clusters", "backups", "scheduledbackups")
	admin := administrator(t, config)
	create := func(object client.Object) {
		t.Helper()
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	cluster := &cnpgv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "blue", Annotations: map[string]string{contract.AnnotationEnabled: "true"}},
		Spec:       cnpgv1.ClusterSpec{Instances: 1, StorageConfiguration: cnpgv1.StorageConfiguration{Size: "1Gi"}, Plugins: []cnpgv1.PluginConfiguration{{Name: contract.PluginName}}},
	}
	create(cluster)
	cluster.Status.CurrentPrimary = "blue-1"
	if err := admin.Status().Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	group := schema.GroupVersion{Group: "postgresql.cnpg.io", Version: "v1"}
	create(fleet.Role(cluster, group))
	binding := fleet.RoleBinding(cluster, group)
	create(binding)
	for i := range 101 { // more than a page
		create(&cnpgv1.Backup{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("b%03d", i)},
			Spec:       cnpgv1.BackupSpec{Cluster: cnpgv1.LocalObjectReference{Name: map[bool]string{true: "blue", false: "red"}[i == 100]}},
		})
	}
	for _, name := range []string{"left", "owned", "applied", "switched"} {
		create(schedule(name))
	}

	sidecar := connect(t, config, admin, binding)
	views := make(chan kubernetes.View, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		sidecar.Watch(ctx, func(v kubernetes.View) { views <- v })
	}()
	defer func() { cancel(); <-ended }()
	first := await(t, views, func(v kubernetes.View) bool { return v.PluginListed })

	if names, err := sidecar.RunningBackups(t.Context()); err != nil || !slices.Equal(names, []string{"b100"}) {
		t.Errorf("running %q, error %v", names, err)
	}
	sleepAndWake(t, admin, sidecar)
	hibernate(t, sidecar, views, first)
	applyFence(t, admin, sidecar)
	at := time.Now()
	for range 2 { // as after a lost answer
		event := kubernetes.Event{Type: kubernetes.EventNormal, Reason: "Hibernated", Message: "Put to sleep"}
		if err := sidecar.Record(t.Context(), first, event, at); err != nil {
			t.Error(err)
		}
	}
	var events corev1.EventList
	if err := admin.List(t.Context(), &events); err != nil {
		t.Fatal(err)
	}
	others := func(e corev1.Event) bool { return e.Reason != "Hibernated" || e.InvolvedObject.UID != cluster.UID }
	if written := slices.DeleteFunc(events.Items, others); len(written) != 1 {
		t.Errorf("the Event was written %d times, want once", len(written))
	}
}

// applyFence fences a cluster that a person has woken, and applies a manifest with that fence. `kubectl apply` then sends only its own
// annotation, because the other has the value already.
func applyFence(t *testing.T, admin client.Client, sidecar *kubernetes.Client) {
	t.Helper()
	view, err := sidecar.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	since := "2026-03-01T12:00:00Z"
	if view, err = sidecar.Annotate(t.Context(), view, contract.AnnotationAsleepSince, &since); err != nil {
		t.Fatal(err)
	}
	if view, err = sidecar.Fence(t.Context(), view, time.Now()); err != nil || !view.Dozing {
		t.Fatalf("fenced by us: %t, error %v", view.Dozing, err)
	}
	if since, left := view.Annotations[contract.AnnotationAsleepSince]; left {
		t.Errorf("the doze has the beginning of the last hibernation, %s", since)
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		"kubectl.kubernetes.io/last-applied-configuration": `{"metadata":{"annotations":{"cnpg.io/fencedInstances":"[\"*\"]"}}}`,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	cluster := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: view.Name}}
	if err := admin.Patch(t.Context(), cluster, client.RawPatch(types.MergePatchType, body), client.FieldOwner("kubectl-client-side-apply")); err != nil {
		t.Fatal(err)
	}
	if view, err = sidecar.Get(t.Context()); err != nil || view.Dozing || !view.Fenced || !view.FenceApplied {
		t.Errorf("a fence that a person has applied: %+v, error %v", view, err)
	}
}

// TestClient_resizesItsPod shrinks and grows a pod with exactly the rights of a sidecar whose cluster dozes.
func TestClient_resizesItsPod(t *testing.T) {
	t.Parallel()
	config := apiservertest.Start(t, "clusters")
	admin := administrator(t, config)
	group := schema.GroupVersion{Group: "postgresql.cnpg.io", Version: "v1"}
	cluster := &cnpgv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "blue", UID: "u", Annotations: map[string]string{contract.AnnotationDozeMinutes: "5"}},
		Status:     cnpgv1.ClusterStatus{CurrentPrimary: "blue-1"},
	}
	binding := fleet.RoleBinding(cluster, group)
	operators := corev1.PodSpec{Containers: []corev1.Container{{Name: "postgres", Image: "example.org/postgresql", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("0.5"), corev1.ResourceMemory: apiresource.MustParse("512Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: apiresource.MustParse("1Gi")},
	}}}}
	stored, err := json.Marshal(operators)
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "blue-1", Annotations: map[string]string{contract.AnnotationPodSpec: string(stored)}},
		Spec:       operators,
	}
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "scale-to-zero", Image: "example.org/sidecar", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("10m")},
	}})
	sidecar := connect(t, config, admin, binding)
	for _, object := range []client.Object{fleet.Role(cluster, group), binding, pod} {
		if err := admin.Create(t.Context(), object, client.FieldOwner("manager")); err != nil {
			t.Fatal(err)
		}
	}
	for late := time.After(patience); ; time.Sleep(20 * time.Millisecond) { // the API server learns of a Role by a watch
		_, err := sidecar.Pod(t.Context())
		if err == nil {
			break
		}
		select {
		case <-late:
			t.Fatal(err)
		default:
		}
	}
	resizer := doze.NewResizer(sidecar, string(pod.UID), apiresource.MustParse("64Mi"), slog.New(slog.NewTextHandler(t.Output(), nil)))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); resizer.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	requests := func() string {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			t.Fatal(err)
		}
		list := pod.Spec.Containers[0].Resources.Requests
		return list.Cpu().String() + " " + list.Memory().String()
	}
	becomes := func(want string) {
		t.Helper()
		late := time.After(patience)
		for requests() != want {
			select {
			case err := <-resizer.Refused():
				t.Fatal(err)
			case <-late:
				t.Fatalf("the requests are %s, want %s", requests(), want)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	for range 2 {
		resizer.Want(true)
		becomes("10m 64Mi")
		resizer.Want(false)
		becomes("500m 512Mi")
	}
	resizer.Want(true)
	becomes("10m 64Mi")
	hard := corev1.ResourceList{corev1.ResourceRequestsCPU: apiresource.MustParse("100m")}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cpu"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	if err := admin.Create(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	quota.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{corev1.ResourceRequestsCPU: apiresource.MustParse("20m")}}
	if err := admin.Status().Update(t.Context(), quota); err != nil { // as its controller would
		t.Fatal(err)
	}
	resized := func(requests string, options ...client.SubResourcePatchOption) error {
		patch := fmt.Appendf(nil, `{"spec": {"containers": [{"name": "postgres", "resources": {"requests": %s}}]}}`, requests)
		return admin.SubResource("resize").Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch), options...)
	}
	dryRun := &client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{DryRun: []string{metav1.DryRunAll}}}
	for late := time.After(patience); resized(`{"cpu": "500m"}`, dryRun) == nil; { // the API server learns of a quota by a watch
		select {
		case <-late:
			t.Fatal("the quota refuses nothing")
		case <-time.After(20 * time.Millisecond):
		}
	}
	resizer.Want(false)
	select {
	case err := <-resizer.Refused():
		if !strings.Contains(err.Error(), "exceeded quota: cpu") {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("no refusal is told")
	}
	if err := admin.Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	becomes("500m 512Mi")
	resizer.Want(true)
	becomes("10m 64Mi")
	autoscaler := &client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{FieldManager: "vpa-updater"}}
	if err := resized(`{"cpu": "200m", "memory": "100Mi"}`, autoscaler); err != nil {
		t.Fatal(err)
	}
	living, err := sidecar.Pod(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if to := doze.Grow(living); len(to) != 0 {
		t.Errorf("what somebody else has set would become %v", to)
	}
	if to, against := doze.Shrink(living, apiresource.MustParse("64Mi")); len(to) != 0 || against == "" {
		t.Errorf("what somebody else has set would become %v", to)
	}
	if limit := pod.Spec.Containers[0].Resources.Limits.Memory(); limit.String() != "1Gi" || pod.Status.QOSClass != corev1.PodQOSBurstable {
		t.Errorf("the limit is %s, the class %s", limit, pod.Status.QOSClass)
	}
	var refusal *kubernetes.RefusedError
	living.ResourceVersion = "1"
	if err := sidecar.Resize(t.Context(), living, "postgres", doze.Requests{"cpu": apiresource.MustParse("20m")}); !errors.Is(err, kubernetes.ErrConflict) {
		t.Errorf("a resize of what has changed: %v", err)
	}
	requests()
	living.ResourceVersion = pod.ResourceVersion
	if err := sidecar.Resize(t.Context(), living, "postgres", doze.Requests{"cpu": apiresource.MustParse("-1")}); !errors.As(err, &refusal) {
		t.Errorf("a resize to less than nothing: %v", err)
	}
}

// sleepAndWake suspends schedules, lets people become owners of some, and resumes the rest.
func sleepAndWake(t *testing.T, admin client.Client, sidecar *kubernetes.Client) {
	t.Helper()
	suspendAll := func() {
		t.Helper()
		if n, err := sidecar.SuspendBackups(t.Context(), time.Now()); n != 4 || err != nil {
			t.Fatalf("suspended %d, error %v", n, err)
		}
	}
	suspendAll()
	before := read(t, admin, "left").ResourceVersion
	suspendAll()
	if after := read(t, admin, "left").ResourceVersion; after == before {
		t.Error("a second attempt left the schedule in the version that a late patch of the first would name")
	}
	person := client.FieldOwner("a-person")
	owned := read(t, admin, "owned")
	for _, suspended := range []bool{false, true} {
		patch := client.MergeFrom(owned.DeepCopy())
		owned.Spec.Suspend = ptr.To(suspended)
		if err := admin.Patch(t.Context(), owned, patch, person); err != nil {
			t.Fatal(err)
		}
	}
	same := client.RawPatch("application/merge-patch+json", []byte(`{"spec": {"suspend": true}}`))
	if err := admin.Patch(t.Context(), read(t, admin, "switched"), same, person); err != nil {
		t.Fatal(err)
	}
	fromGit := []byte(`{"apiVersion": "postgresql.cnpg.io/v1", "kind": "ScheduledBackup", "metadata": {"name": "applied", "namespace": "default"}, "spec": {"suspend": true, "schedule": "0 0 0 * * *", "cluster": {"name": "blue"}}}`)
	if err := admin.Patch(t.Context(), read(t, admin, "applied"), client.RawPatch("application/apply-patch+yaml", fromGit), client.FieldOwner("argocd-controller")); err != nil {
		t.Fatal(err)
	}
	if r, err := sidecar.ResumeBackups(t.Context()); r.Changed != 4 || len(r.Left) != 2 || err != nil {
		t.Errorf("%+v, error %v", r, err)
	}
	for name, want := range map[string]bool{"left": false, "owned": true, "applied": true, "switched": false} {
		s := read(t, admin, name)
		if got := s.Spec.Suspend != nil && *s.Spec.Suspend; got != want {
			t.Errorf("%s: suspended %t, want %t", name, got, want)
		}
		if _, marked := s.Annotations[contract.AnnotationSuspended]; marked {
			t.Errorf("%s keeps its mark", name)
		}
	}
}

// hibernate turns hibernation on and off again, and checks what the watch shows.
func hibernate(t *testing.T, sidecar *kubernetes.Client, views <-chan kubernetes.View, first kubernetes.View) {
	t.Helper()
	if _, err := sidecar.Hibernate(t.Context(), first, time.Now(), "idle", "{}"); err != nil {
		t.Fatal(err)
	}
	on := await(t, views, func(v kubernetes.View) bool { return v.Hibernating })
	if !on.Ours || !on.Untouched() || on.Counts != "{}" {
		t.Errorf("the hibernation annotation is ours %t, untouched %t; the counts are %q", on.Ours, on.Untouched(), on.Counts)
	}
	if _, err := sidecar.Hibernate(t.Context(), first, time.Now(), "idle", "{}"); !errors.Is(err, kubernetes.ErrConflict) {
		t.Errorf("a patch of what has changed: %v", err)
	}
	var refusal *kubernetes.RefusedError
	invalid := strings.Repeat("x", 300<<10)
	if _, err := sidecar.Annotate(t.Context(), on, contract.AnnotationAnnounced, &invalid); !errors.As(err, &refusal) {
		t.Errorf("an annotation that is too long: %v", err)
	}
	if _, err := sidecar.Withdraw(t.Context(), on); err != nil {
		t.Fatal(err)
	}
	keepAwake(t, sidecar, await(t, views, func(v kubernetes.View) bool { return !v.Hibernating }))
}

// keepAwake checks what the API server records of the times of the channel.
func keepAwake(t *testing.T, sidecar *kubernetes.Client, v kubernetes.View) {
	t.Helper()
	for i, extends := range []bool{false, true, false} {
		until := time.Now().Add(time.Duration(i+1) * time.Hour).UTC().Format(time.RFC3339)
		var err error
		if v, err = sidecar.KeepAwake(t.Context(), v, &until, extends); err != nil {
			t.Fatal(err)
		}
		if v.KeepAwakeOurs == extends {
			t.Errorf("a time that extends another: %t, ours: %t", extends, v.KeepAwakeOurs)
		}
		if ago := time.Since(v.WrittenAt); !extends && (ago < -time.Second || ago > patience) {
			t.Errorf("written %s ago", ago)
		}
	}
}

func administrator(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(cnpgv1.AddToScheme(scheme), corev1.AddToScheme(scheme), authenticationv1.AddToScheme(scheme), rbacv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	admin, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return admin
}

// connect returns a client with the token of the service account that the binding refers to.
func connect(t *testing.T, config *rest.Config, admin client.Client, binding *rbacv1.RoleBinding) *kubernetes.Client {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: binding.Namespace, Name: binding.Subjects[0].Name}}
	if err := admin.Create(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{}
	if err := admin.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	endpoint := kubernetes.Endpoint{URL: config.Host, CAFile: filepath.Join(directory, "ca.crt"), TokenFile: filepath.Join(directory, "token")}
	if !strings.Contains(endpoint.URL, "://") {
		endpoint.URL = "https://" + endpoint.URL
	}
	if err := errors.Join(os.WriteFile(endpoint.CAFile, config.CAData, 0o600), os.WriteFile(endpoint.TokenFile, []byte(request.Status.Token), 0o600)); err != nil {
		t.Fatal(err)
	}
	identity := kubernetes.Identity{Namespace: "default", Cluster: "blue", Pod: "blue-1", Group: "postgresql.cnpg.io", Version: "v1"}
	sidecar, err := kubernetes.Connect(endpoint, identity, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return sidecar
}

// await returns the first view that satisfies want.
func await(t *testing.T, views <-chan kubernetes.View, want func(kubernetes.View) bool) kubernetes.View {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case v := <-views:
			if want(v) {
				return v
			}
		case <-late:
			t.Fatal("not seen")
		}
	}
}

func schedule(name string) *cnpgv1.ScheduledBackup {
	return &cnpgv1.ScheduledBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       cnpgv1.ScheduledBackupSpec{Schedule: "0 0 0 * * *", Cluster: cnpgv1.LocalObjectReference{Name: "blue"}},
	}
}

func read(t *testing.T, admin client.Client, name string) *cnpgv1.ScheduledBackup {
	t.Helper()
	var s cnpgv1.ScheduledBackup
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, &s); err != nil {
		t.Fatal(err)
	}
	return &s
}
