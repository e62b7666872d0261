package tests

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// everyReconciliation is how often Flux compares what is in Git with the cluster.
const everyReconciliation = "3s"

// Flux's kustomize-controller applies clusters and schedules every few seconds and changes nothing of what a sleep has written,
// unless Git has it.
func TestFlux(t *testing.T) {
	whole(t)
	t.Parallel()
	image, definition := provided(t, "KUSTOMIZE_CONTROLLER_IMAGE"), provided(t, "KUSTOMIZE_CONTROLLER_CRD")
	drivers := provided(t, "DRIVERS_IMAGE")
	s := begin(t)

	sleepy := func(minutes string) []client.Object {
		c := kube.NewCluster("", "sleepy", 1, minutes)
		resumes, kept := scenario.NewScheduledBackup(c, "resumed-by-git", yearly), scenario.NewScheduledBackup(c, "not-corrected", yearly)
		no := false
		resumes.Spec.Suspend, kept.Spec.Suspend = &no, &no
		kept.Annotations = map[string]string{"kustomize.toolkit.fluxcd.io/ssa": "IfNotPresent"}
		return []client.Object{c, scenario.NewScheduledBackup(c, "plain", yearly), resumes, kept}
	}
	dozy, woken := kube.NewCluster("", "dozy", 1, never), kube.NewCluster("", "woken", 1, thresholdMinutes)
	dozy.Annotations[scenario.DozeMinutes] = dozeMinutes
	woken.Annotations[scenario.Hibernation] = "off"
	f := s.flux(image, definition, drivers, map[string][]client.Object{
		"awake": sleepy(never), "sleeping": sleepy(soon), "dozing": {dozy}, "off": {woken},
	})
	t.Run("a cluster sleeps and is woken", func(t *testing.T) {
		t.Parallel()
		f.sleeps(begin(t))
	})
	t.Run("a cluster dozes and is woken", func(t *testing.T) {
		t.Parallel()
		f.dozes(begin(t))
	})
	t.Run("hibernation off in Git wakes the cluster", func(t *testing.T) {
		t.Parallel()
		f.wakes(begin(t))
	})
}

// yearly is a schedule that no test reaches.
const yearly = "0 0 0 1 1 *"

func (f flux) sleeps(s *story) {
	s.Helper()
	c, deployed := kube.NewCluster(s.namespace, "sleepy", 1, never), f.deploys(s, "awake")
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.must(kube.StartClient(s.ctx, c))
	plain, resumed, kept := scenario.NewScheduledBackup(c, "plain", yearly), scenario.NewScheduledBackup(c, "resumed-by-git", yearly),
		scenario.NewScheduledBackup(c, "not-corrected", yearly)

	deployed.follows("sleeping")
	s.fallsAsleep(c, "asleep")
	since := c.Annotations[scenario.AsleepSince]
	for _, schedule := range []*cnpgv1.ScheduledBackup{plain, kept} {
		_, err := scenario.Await(s.ctx, kube, schedule, "suspended", toSettle, suspended)
		s.must(err)
	}
	deployed.reconciled(3)
	deployed.follows("awake")
	_, err := kube.AwaitCluster(s.ctx, c, "changed as Git was", toHealthy, func(c *cnpgv1.Cluster) bool {
		return c.Annotations[scenario.InactivityMinutes] == never
	})
	s.must(err)
	deployed.reconciled(1)
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	if pods := s.instances(c); !scenario.Hibernated(c) || c.Annotations[scenario.AsleepSince] != since || len(pods) != 0 {
		s.Fatalf("it does not sleep any more as it did since %s: annotations %v, %d pods", since, c.Annotations, len(pods))
	}
	for _, schedule := range []*cnpgv1.ScheduledBackup{plain, resumed, kept} {
		s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(schedule), schedule))
		if got, want := suspended(schedule), schedule.Name != resumed.Name; got != want {
			s.Errorf("asleep, the schedule %s is suspended %t, want %t", schedule.Name, got, want)
		}
	}

	_, err = kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 1")
	s.must(err)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	for _, schedule := range []*cnpgv1.ScheduledBackup{plain, resumed, kept} {
		s.resumed(schedule)
	}
	s.keepAwakeByCommand(c)
	byHand := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"example.com/by-hand":"yes"}}}`))
	s.must(kube.Patch(s.ctx, c.DeepCopy(), byHand, client.FieldOwner("kubectl-annotate")))
	deployed.reconciled(3)
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	if c.Annotations["example.com/by-hand"] != "" {
		s.Error("Flux left alone what kubectl had written: what the command line writes proves nothing")
	}
	if !scenario.Healthy(c) || c.Annotations[scenario.KeepAwakeUntil] == "" {
		s.Errorf("it was woken and told to stay awake, and is in phase %q with the annotations %v", c.Status.Phase, c.Annotations)
	}
	if suspended(plain) {
		s.Error("the schedule of the woken cluster is suspended again")
	}
}

func (f flux) dozes(s *story) {
	s.Helper()
	c, deployed := kube.NewCluster(s.namespace, "dozy", 1, never), f.deploys(s, "dozing")
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.must(kube.StartClient(s.ctx, c))
	before := s.dozes(c)
	marks := func() (marks [3]string) {
		for i, key := range []string{scenario.Fence, scenario.DozingSince, scenario.PostgresStopped} {
			marks[i] = c.Annotations[key]
		}
		return marks
	}
	written := marks()
	deployed.reconciled(3)
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	if marks() != written {
		s.Fatalf("the marks of its doze were %q and are %q", written, marks())
	}

	session := s.open(c, "rw")
	deployed.reconciled(3)
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	if after := s.instances(c); marks() != [3]string{} || len(after) != 1 || after[0].UID != before.UID {
		s.Errorf("woken, the marks of a doze are %q and the pods %v", marks(), after)
	}
	s.must(session.Run("select 1"))
	session.Close()
}

func (f flux) wakes(s *story) {
	s.Helper()
	c := kube.NewCluster(s.namespace, "woken", 1, thresholdMinutes)
	f.deploys(s, "off")
	_, err := kube.AwaitCluster(s.ctx, c, "put to sleep", toHealthy+toSleep, scenario.HibernationOn)
	s.must(err)
	since := c.Annotations[scenario.AsleepSince]
	_, err = kube.AwaitCluster(s.ctx, c, "woken by Flux", toHealthy, func(c *cnpgv1.Cluster) bool {
		return c.Annotations[scenario.Hibernation] == "off" && slices.ContainsFunc(c.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
			return e.Manager == "kustomize-controller" && strings.Contains(e.FieldsV1.GetRawString(), `"f:`+scenario.Hibernation+`"`)
		})
	})
	s.must(err)
	_, err = kube.AwaitCluster(s.ctx, c, "put to sleep again", toHealthy+toSleep, func(c *cnpgv1.Cluster) bool {
		return scenario.HibernationOn(c) && c.Annotations[scenario.AsleepSince] != since
	})
	s.must(err)
}

// keepAwakeByCommand keeps the cluster awake with the kubectl plugin, whose field manager Flux must not take for kubectl.
func (s *story) keepAwakeByCommand(c *cnpgv1.Cluster) {
	s.Helper()
	if out, err := exec.CommandContext(s.ctx, s.command(), "keep-awake", c.Name, "2h", "-n", c.Namespace).CombinedOutput(); err != nil {
		s.Fatalf("keep it awake: %v: %s", err, out)
	}
}

// command builds the kubectl plugin.
func (s *story) command() string {
	s.Helper()
	program := filepath.Join(s.TempDir(), "kubectl-scale_to_zero")
	build := exec.CommandContext(s.ctx, "go", "build", "-o", program, "./plugin/kubectl")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		s.Fatalf("build the command: %v: %s", err, out)
	}
	return program
}

// flux is Flux's kustomize-controller and a source, without the source-controller: that one applies nothing, and all that
// kustomize-controller takes from it is the address and the digest of an archive in the status of a source. The tests serve the
// archive and write that status, as controllers of others do, for which Flux has the kind ExternalArtifact.
type flux struct{ namespace string }

// flux installs the controller and its definitions, and a source that has the objects in directories.
func (s *story) flux(image, definition, drivers string, git map[string][]client.Object) flux {
	s.Helper()
	s.onlyHere()
	definitions, err := os.ReadFile(definition)
	s.must(err)
	kinds := []string{"kustomizations.kustomize.toolkit.fluxcd.io"}
	for _, kind := range []string{"GitRepository/gitrepositories", "OCIRepository/ocirepositories", "Bucket/buckets", "ExternalArtifact/externalartifacts"} {
		kind, plural, _ := strings.Cut(kind, "/")
		definitions = append(definitions, strings.NewReplacer("KIND", kind, "PLURAL", plural).Replace(sourceDefinition)...)
		kinds = append(kinds, plural+".source.toolkit.fluxcd.io")
	}
	s.Cleanup(func() {
		ctx := cleanup(s.T)
		for _, name := range kinds {
			_ = kube.Delete(ctx, fluxObject("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name))
		}
		_ = kube.Delete(ctx, fluxObject("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "", s.namespace))
	})
	s.apply(definitions)
	for _, name := range kinds {
		s.awaitEstablished(fluxObject("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name))
	}

	archive := s.archive(git)
	stored := &corev1.ConfigMap{BinaryData: map[string][]byte{"git.tar.gz": archive}}
	stored.Namespace, stored.Name = s.namespace, "git"
	s.must(kube.Create(s.ctx, stored))
	s.apply([]byte(strings.NewReplacer("NAMESPACE", s.namespace, "IMAGE", image, "DRIVERS", drivers).Replace(fluxManifest)))
	server := &corev1.Pod{}
	server.Namespace, server.Name = s.namespace, "git"
	_, err = scenario.Await(s.ctx, kube, server, "ready", toHealthy, scenario.Ready)
	s.must(err)
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(archive))
	source := fluxObject("source.toolkit.fluxcd.io/v1", "ExternalArtifact", s.namespace, "git")
	source.Object["status"] = map[string]any{"artifact": map[string]any{
		"path": "git.tar.gz", "url": "http://" + net.JoinHostPort(server.Status.PodIP, "8080") + "/git.tar.gz", "revision": "main@" + digest, "digest": digest,
		"size": int64(len(archive)), "lastUpdateTime": time.Now().UTC().Format(time.RFC3339),
	}}
	s.must(kube.Create(s.ctx, source))
	s.must(kube.AwaitDeployment(s.ctx, s.namespace, "kustomize-controller", toHealthy))
	return flux{namespace: s.namespace}
}

// sourceDefinition defines a kind of source with any content.
const sourceDefinition = `
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: PLURAL.source.toolkit.fluxcd.io}
spec:
  group: source.toolkit.fluxcd.io
  names: {kind: KIND, plural: PLURAL}
  scope: Namespaced
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// fluxManifest is the controller, with the rights that Flux gives it, and a server of the archive.
const fluxManifest = `apiVersion: v1
kind: ServiceAccount
metadata: {namespace: NAMESPACE, name: kustomize-controller}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NAMESPACE}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, namespace: NAMESPACE, name: kustomize-controller}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: NAMESPACE, name: kustomize-controller}
spec:
  selector: {matchLabels: {app: kustomize-controller}}
  template:
    metadata: {labels: {app: kustomize-controller}}
    spec:
      serviceAccountName: kustomize-controller
      containers:
        - name: manager
          image: IMAGE
          args: [--feature-gates=ExternalArtifact=true]
          env: [{name: RUNTIME_NAMESPACE, value: NAMESPACE}]
          readinessProbe: {httpGet: {path: /readyz, port: 9440}}
---
apiVersion: v1
kind: Pod
metadata: {namespace: NAMESPACE, name: git}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: git
      image: DRIVERS
      command: [python3, -m, http.server, "8080", --directory, /git]
      readinessProbe: {tcpSocket: {port: 8080}}
      volumeMounts: [{name: git, mountPath: /git}]
  volumes: [{name: git, configMap: {name: git}}]
`

func fluxObject(version, kind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.FromAPIVersionAndKind(version, kind))
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

// archive has the objects as people write them: without a status, and without a namespace, which Flux fills in.
func (s *story) archive(git map[string][]client.Object) []byte {
	s.Helper()
	var written bytes.Buffer
	compressed := gzip.NewWriter(&written)
	files := tar.NewWriter(compressed)
	for directory, objects := range git {
		for _, object := range objects {
			kind, err := apiutil.GVKForObject(object, kube.Scheme())
			s.must(err)
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
			s.must(err)
			plain := &unstructured.Unstructured{Object: content}
			plain.SetGroupVersionKind(kind)
			unstructured.RemoveNestedField(content, "status")
			unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
			text, err := yaml.Marshal(content)
			s.must(err)
			s.must(files.WriteHeader(&tar.Header{Name: filepath.Join(directory, object.GetName()+"-"+kind.Kind+".yaml"), Mode: 0o644, Size: int64(len(text))}))
			_, err = files.Write(text)
			s.must(err)
		}
	}
	s.must(files.Close())
	s.must(compressed.Close())
	return written.Bytes()
}

// kustomization is what Flux applies to a test's namespace.
type kustomization struct {
	*story
	object *unstructured.Unstructured
}

// deploys has Flux apply a directory of the source to the test's namespace, again and again.
func (f flux) deploys(s *story, directory string) kustomization {
	s.Helper()
	k := kustomization{story: s, object: fluxObject("kustomize.toolkit.fluxcd.io/v1", "Kustomization", s.namespace, "deployed")}
	k.object.Object["spec"] = map[string]any{
		"sourceRef": map[string]any{"kind": "ExternalArtifact", "namespace": f.namespace, "name": "git"},
		"path":      directory, "targetNamespace": s.namespace, "interval": everyReconciliation, "prune": true, "wait": true,
		"deletionPolicy": "Orphan", // a test that fails shows what there is
	}
	s.must(kube.Create(s.ctx, k.object))
	s.Cleanup(func() { // while the controller is there, which has a finalizer
		s.ctx = cleanup(s.T)
		s.must(kube.Delete(s.ctx, k.object))
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(k.object.GroupVersionKind())
		s.must(kube.AwaitGone(s.ctx, list, s.namespace, k.object.GetName(), toRestore))
	})
	return k
}

// follows has Flux apply another directory, as if Git had changed.
func (k kustomization) follows(directory string) {
	k.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"path":%q}}`, directory))
	k.must(kube.Patch(k.ctx, k.object.DeepCopy(), patch))
}

// reconciled waits until Flux has compared everything so many more times, by its own count.
func (k kustomization) reconciled(times int64) {
	k.Helper()
	begun := k.reconciliations() + 1 // one may be under way
	for deadline := time.Now().Add(toHealthy); k.reconciliations() < begun+times; pause(k.story, pollEvery) {
		if time.Now().After(deadline) {
			k.Fatalf("Flux has not reconciled %d times: %v", times, k.object.Object["status"])
		}
	}
}

// reconciliations counts those that succeeded.
func (k kustomization) reconciliations() int64 {
	k.Helper()
	var of struct {
		Status struct {
			History []struct {
				Status string `json:"lastReconciledStatus"`
				Total  int64  `json:"totalReconciliations"`
			} `json:"history"`
		} `json:"status"`
	}
	k.decode(k.object, &of)
	var count int64
	for _, snapshot := range of.Status.History {
		if snapshot.Status == "ReconciliationSucceeded" {
			count += snapshot.Total
		}
	}
	return count
}

// awaitEstablished waits until the API server serves a kind.
func (s *story) awaitEstablished(definition *unstructured.Unstructured) {
	s.Helper()
	for deadline := time.Now().Add(toSettle); ; pause(s, pollEvery) {
		var of struct {
			Status struct {
				Conditions []metav1.Condition `json:"conditions"`
			} `json:"status"`
		}
		s.decode(definition, &of)
		if meta.IsStatusConditionTrue(of.Status.Conditions, "Established") {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("%s is not served: %v", definition.GetName(), of)
		}
	}
}

// decode gets the object, and fills the target with what it knows of it.
func (s *story) decode(object *unstructured.Unstructured, target any) {
	s.Helper()
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(object), object))
	s.must(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, target))
}
