package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cloudnative-pg/cloudnative-pg/pkg/specs"
	"github.com/cloudnative-pg/cnpg-i/pkg/lifecycle"
	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files anew")

// instance is a pod as the operator itself makes it.
func instance(t testing.TB) *corev1.Pod {
	t.Helper()
	cluster := cnpgv1.Cluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: "postgresql.cnpg.io/v1", Kind: "Cluster"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", UID: "u"},
		Spec: cnpgv1.ClusterSpec{
			Instances: 3, ImageName: "example.org/postgresql:17.5", StorageConfiguration: cnpgv1.StorageConfiguration{Size: "1Gi"},
		},
	}
	cluster.SetDefaults()
	pod, err := specs.NewInstance(context.Background(), cluster, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	return pod
}

func configured() Sidecar {
	quantities := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("96Mi")}
	return Sidecar{
		Image: "example.org/sidecar:v7", LogLevel: "debug", Group: "postgresql.cnpg.io", Version: "v1",
		Resources: corev1.ResourceRequirements{Requests: quantities, Limits: quantities},
	}
}

// What is added to the operator's own pod, in both forms.
func TestGoldenPods(t *testing.T) {
	t.Parallel()
	for name, sidecar := range map[string]Sidecar{"evaluate": Placeholder(), "create": configured()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := instance(t)
			injected, err := Inject(pod, sidecar)
			if err != nil {
				t.Fatal(err)
			}
			added := map[string]any{
				"containers": injected.Spec.Containers[len(pod.Spec.Containers):],
				"volumes":    injected.Spec.Volumes[len(pod.Spec.Volumes):],
			}
			got, err := yaml.Marshal(added)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(file, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("what is added (-want +got):\n%s", diff)
			}
			injected.Spec.Containers = injected.Spec.Containers[:len(pod.Spec.Containers)]
			injected.Spec.Volumes = injected.Spec.Volumes[:len(pod.Spec.Volumes)]
			if !equality.Semantic.DeepEqual(pod, injected) {
				t.Error("something else of the pod was changed")
			}
		})
	}
}

func TestInject(t *testing.T) {
	t.Parallel()
	inject := func(t *testing.T, pod *corev1.Pod, sidecar Sidecar) *corev1.Pod {
		t.Helper()
		injected, err := Inject(pod, sidecar)
		if err != nil {
			t.Fatal(err)
		}
		return injected
	}
	t.Run("injecting twice is injecting once", func(t *testing.T) {
		t.Parallel()
		once := inject(t, instance(t), configured())
		if diff := cmp.Diff(once, inject(t, once, configured())); diff != "" {
			t.Errorf("the second time changes (-once +twice):\n%s", diff)
		}
	})
	t.Run("CREATE after EVALUATE is CREATE alone", func(t *testing.T) {
		t.Parallel()
		alone := inject(t, instance(t), configured())
		if diff := cmp.Diff(alone, inject(t, inject(t, instance(t), Placeholder()), configured())); diff != "" {
			t.Errorf("the forms differ (-alone +after):\n%s", diff)
		}
	})
	t.Run("the forms differ in image, resources and environment only", func(t *testing.T) {
		t.Parallel()
		a, b := inject(t, instance(t), Placeholder()), inject(t, instance(t), configured())
		last := len(a.Spec.Containers) - 1
		for _, c := range []*corev1.Container{&a.Spec.Containers[last], &b.Spec.Containers[last]} {
			c.Image, c.Resources, c.Env = "", corev1.ResourceRequirements{}, nil
		}
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("they differ (-evaluate +create):\n%s", diff)
		}
	})
	t.Run("neither data nor keys are mounted", func(t *testing.T) {
		t.Parallel()
		injected := inject(t, instance(t), configured())
		var paths []string
		for _, mount := range injected.Spec.Containers[len(injected.Spec.Containers)-1].VolumeMounts {
			paths = append(paths, mount.MountPath+" "+mount.SubPath)
		}
		want := []string{"/controller/run run", "/scale-to-zero ", "/var/run/secrets/kubernetes.io/serviceaccount "}
		if diff := cmp.Diff(want, paths); diff != "" {
			t.Errorf("mounts (-want +got):\n%s", diff)
		}
	})
	t.Run("the token is the sidecar's own where the operator mounts one for PostgreSQL only", func(t *testing.T) { // as 1.31 will
		t.Parallel()
		pod := instance(t)
		pod.Spec.AutomountServiceAccountToken = ptr.To(false)
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "kube-api-access"})
		postgres := &pod.Spec.Containers[0]
		postgres.VolumeMounts = append(postgres.VolumeMounts, corev1.VolumeMount{Name: "kube-api-access", MountPath: tokenPath})
		injected := inject(t, pod, configured())
		for _, mount := range injected.Spec.Containers[len(injected.Spec.Containers)-1].VolumeMounts {
			if mount.MountPath == tokenPath && mount.Name != volumeToken || mount.Name == "kube-api-access" {
				t.Errorf("the sidecar mounts %s", mount.Name)
			}
		}
		if token := injected.Spec.Volumes[len(injected.Spec.Volumes)-1]; token.Name != volumeToken || token.Projected.Sources[0].ServiceAccountToken == nil {
			t.Errorf("the last volume is %+v", token)
		}
	})
	t.Run("the user of the PostgreSQL container is taken over where it has one", func(t *testing.T) {
		t.Parallel()
		pod := instance(t)
		pod.Spec.Containers[0].SecurityContext.RunAsUser = ptr.To(int64(1000))
		got := inject(t, pod, configured())
		if user := got.Spec.Containers[len(got.Spec.Containers)-1].SecurityContext.RunAsUser; user == nil || *user != 1000 {
			t.Errorf("the user is %v, want 1000", user)
		}
	})
	for rule, spoil := range map[string]func(*corev1.Pod){
		"a pod without the container is left as it is":   func(p *corev1.Pod) { p.Spec.Containers[0].Name = "other" },
		"a container without PGHOST is left as it is":    func(p *corev1.Pod) { p.Spec.Containers[0].Env = nil },
		"a socket outside of any mount is left as it is": func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts = nil },
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			pod := instance(t)
			spoil(pod)
			var missing *MissingError
			if _, err := Inject(pod, configured()); !errors.As(err, &missing) || missing.What == "" {
				t.Errorf("got %v, want what is missing", err)
			}
		})
	}
}

// observed records what the hook tells.
type observed struct {
	results []Result
	missing []string
}

func (o *observed) Injected(_ string, result Result) { o.results = append(o.results, result) }
func (o *observed) Missing(_ []byte, what string)    { o.missing = append(o.missing, what) }

func hook(t testing.TB, definition []byte, operation lifecycle.OperatorOperationType_Type) (*lifecycle.OperatorLifecycleResponse, *observed) {
	t.Helper()
	o := &observed{}
	server := &Server{Sidecar: configured(), Observer: o, Logger: slog.New(slog.DiscardHandler)}
	answer, err := server.LifecycleHook(context.Background(), &lifecycle.OperatorLifecycleRequest{
		ObjectDefinition: definition, ClusterDefinition: []byte(`{}`),
		OperationType: &lifecycle.OperatorOperationType{Type: operation},
	})
	if err != nil || answer == nil {
		t.Fatalf("the hook answered %v, %v: it must never fail", answer, err)
	}
	return answer, o
}

func TestHook(t *testing.T) {
	t.Parallel()
	encoded := func(change func(*corev1.Pod)) []byte {
		pod := instance(t)
		change(pod)
		body, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	same := func(*corev1.Pod) {}
	for _, row := range []struct {
		rule       string
		definition []byte
		operation  lifecycle.OperatorOperationType_Type
		want       Result
		image      string
	}{
		{"EVALUATE gives the constant form", encoded(same), lifecycle.OperatorOperationType_TYPE_EVALUATE, ResultInjected, placeholderImage},
		{"CREATE gives the real one", encoded(same), lifecycle.OperatorOperationType_TYPE_CREATE, ResultInjected, "example.org/sidecar:v7"},
		{"other operations are none of our business", encoded(same), lifecycle.OperatorOperationType_TYPE_DELETE, ResultSkipped, ""},
		{"pods of jobs are left alone", encoded(func(p *corev1.Pod) { p.Labels["cnpg.io/podRole"] = "pooler" }), lifecycle.OperatorOperationType_TYPE_CREATE, ResultSkipped, ""},
		{"a pod without a place is left alone", encoded(func(p *corev1.Pod) { p.Spec.Containers[0].Env = nil }), lifecycle.OperatorOperationType_TYPE_CREATE, ResultMissing, ""},
		{"what cannot be read is left alone", []byte("{"), lifecycle.OperatorOperationType_TYPE_CREATE, ResultUnreadable, ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			answer, o := hook(t, row.definition, row.operation)
			if diff := cmp.Diff([]Result{row.want}, o.results); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			patched := len(answer.GetJsonPatch()) != 0
			if patched != (row.want == ResultInjected) || !strings.Contains(string(answer.GetJsonPatch()), row.image) {
				t.Errorf("the patch is %s", answer.GetJsonPatch())
			}
			if (row.want == ResultMissing) != (len(o.missing) == 1) {
				t.Errorf("missing was told: %v", o.missing)
			}
		})
	}
}

// patched is the pod as the operator has it after an answer.
func patched(t *testing.T, definition []byte, answer *lifecycle.OperatorLifecycleResponse) []byte {
	t.Helper()
	patch, err := jsonpatch.DecodePatch(answer.GetJsonPatch())
	if err != nil {
		t.Fatal(err)
	}
	pod, err := patch.Apply(definition)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// The operator asks for a plan of the pod first, and then gives that to CREATE: whatever of the settings differs from the plan's
// constant form has to be in the second patch.
func TestWhatTheOperatorMakes(t *testing.T) {
	t.Parallel()
	apply := func(definition []byte, operation lifecycle.OperatorOperationType_Type) []byte {
		answer, _ := hook(t, definition, operation)
		return patched(t, definition, answer)
	}
	asked, err := json.Marshal(instance(t))
	if err != nil {
		t.Fatal(err)
	}
	planned := apply(asked, lifecycle.OperatorOperationType_TYPE_EVALUATE)
	made := apply(planned, lifecycle.OperatorOperationType_TYPE_CREATE)
	want, err := Inject(instance(t), configured())
	if err != nil {
		t.Fatal(err)
	}
	Quicken(want)
	Linger(want)
	var got corev1.Pod
	if err := json.Unmarshal(made, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, &got); diff != "" {
		t.Errorf("the pod (-want +got):\n%s", diff)
	}
	if again := apply(made, lifecycle.OperatorOperationType_TYPE_CREATE); !jsonpatch.Equal(made, again) {
		t.Errorf("asked once more the pod changes:\n%s", cmp.Diff(string(made), string(again)))
	}
}

// A new image rolls the clusters that asked for that, and no other.
func TestWhatRolls(t *testing.T) {
	t.Parallel()
	body, err := json.Marshal(instance(t))
	if err != nil {
		t.Fatal(err)
	}
	const quick = `"periodSeconds":1,` // CREATE's startup probe
	annotated := func(value string) string {
		return `{"metadata":{"annotations":{"xata.io/scale-to-zero-sidecar-update":"` + value + `"}}}`
	}
	for _, row := range []struct {
		rule, cluster string
		atOnce, rolls bool
	}{
		{"by default nothing does", `{}`, false, false},
		{"the plugin's setting holds for every cluster", `{}`, true, true},
		{"a cluster may ask for it", annotated("immediate"), false, true},
		{"or against it", annotated("on-restart"), true, false},
		{"what is not understood rolls nothing", annotated("now"), true, false},
		{"nor what cannot be read", `{`, true, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			plan := func(image string) string {
				sidecar := configured()
				sidecar.Image = image
				server := &Server{Sidecar: sidecar, AtOnce: row.atOnce, Observer: &observed{}, Logger: slog.New(slog.DiscardHandler)}
				answer, err := server.LifecycleHook(t.Context(), &lifecycle.OperatorLifecycleRequest{
					ObjectDefinition: body, ClusterDefinition: []byte(row.cluster),
					OperationType: &lifecycle.OperatorOperationType{Type: lifecycle.OperatorOperationType_TYPE_EVALUATE},
				})
				if err != nil {
					t.Fatal(err)
				}
				return string(patched(t, body, answer))
			}
			before, after := plan("example.org/sidecar:v7"), plan("example.org/sidecar:v8")
			if rolls := before != after; rolls != row.rolls {
				t.Errorf("a new image rolls: %t, want %t", rolls, row.rolls)
			}
			if strings.Contains(after, placeholderImage) == row.rolls || strings.Contains(after, quick) {
				t.Errorf("the plan is %s", after)
			}
		})
	}
}

func TestLinger(t *testing.T) {
	t.Parallel()
	own := &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 9}}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "other"}, {Name: "postgres"}}}}
	Linger(pod)
	if pod.Spec.Containers[0].Lifecycle != nil {
		t.Error("another container got a hook")
	}
	hook := pod.Spec.Containers[1].Lifecycle.PreStop.Exec
	if hook == nil {
		t.Fatal("PostgreSQL's container has no hook")
	}
	directory := t.TempDir()
	for _, row := range []struct {
		rule string
		file string
		said string
	}{
		{"without the file it ends at once", "", ""},
		{"with it, it sleeps", farewellFile, "sleep 2"},
	} {
		if row.file != "" {
			if err := os.WriteFile(filepath.Join(directory, row.file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		command := exec.CommandContext(t.Context(), hook.Command[0], hook.Command[1], strings.ReplaceAll(hook.Command[2], "exec sleep", "exec echo sleep"))
		command.Env = []string{"PGHOST=" + directory, "PATH=/usr/bin:/bin"}
		out, err := command.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != row.said {
			t.Errorf("%s: it did %q (%v), want %q", row.rule, got, err, row.said)
		}
	}
	pod.Spec.Containers[1].Lifecycle = own
	Linger(pod)
	if pod.Spec.Containers[1].Lifecycle.PreStop.Sleep == nil {
		t.Error("a hook that was there was replaced")
	}
}

func TestQuicken(t *testing.T) {
	t.Parallel()
	probe := func(delay, period, threshold int32) *corev1.Probe {
		return &corev1.Probe{InitialDelaySeconds: delay, PeriodSeconds: period, FailureThreshold: threshold, TimeoutSeconds: 5}
	}
	for _, row := range []struct {
		rule       string
		have, want *corev1.Probe
	}{
		{"the time allowed stays the same", probe(0, 10, 360), probe(0, 1, 3600)},
		{"a delay becomes part of it", probe(30, 5, 6), probe(0, 1, 60)},
		{"what is not set is Kubernetes' default", probe(0, 0, 0), probe(0, 1, 30)},
		{"a probe of one second stays", probe(0, 1, 7), probe(0, 1, 7)},
		{"without a probe there is none", nil, nil},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			pod := instance(t)
			pod.Spec.Containers[0].StartupProbe = row.have
			Quicken(pod)
			if diff := cmp.Diff(row.want, pod.Spec.Containers[0].StartupProbe); diff != "" {
				t.Errorf("probe (-want +got):\n%s", diff)
			}
		})
	}
}

// The probe of a new pod is quick, unless the user configured it; that of a plan stays, or every instance would be rolled.
func TestWhoseStartupProbe(t *testing.T) {
	t.Parallel()
	body, err := json.Marshal(instance(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		rule, cluster string
		operation     lifecycle.OperatorOperationType_Type
		quick         bool
	}{
		{"a new pod's is quick", `{"spec":{"instances":1}}`, lifecycle.OperatorOperationType_TYPE_CREATE, true},
		{"a plan's is not", `{"spec":{"instances":1}}`, lifecycle.OperatorOperationType_TYPE_EVALUATE, false},
		{"the user's own stays", `{"spec":{"probes":{"startup":{"periodSeconds":5}}}}`, lifecycle.OperatorOperationType_TYPE_CREATE, false},
		{"another probe of the user's does not matter", `{"spec":{"probes":{"readiness":{"periodSeconds":5}}}}`, lifecycle.OperatorOperationType_TYPE_CREATE, true},
		{"a definition that cannot be read may have one", `{`, lifecycle.OperatorOperationType_TYPE_CREATE, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			server := &Server{Sidecar: configured(), Observer: &observed{}, Logger: slog.New(slog.DiscardHandler)}
			answer, err := server.LifecycleHook(t.Context(), &lifecycle.OperatorLifecycleRequest{
				ObjectDefinition: body, ClusterDefinition: []byte(row.cluster), OperationType: &lifecycle.OperatorOperationType{Type: row.operation},
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(string(answer.GetJsonPatch()), "startupProbe"); got != row.quick {
				t.Errorf("the probe is changed: %t, want %t: %s", got, row.quick, answer.GetJsonPatch())
			}
		})
	}
}

func FuzzHookNeverFails(f *testing.F) {
	body, err := json.Marshal(instance(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body, int32(lifecycle.OperatorOperationType_TYPE_CREATE))
	f.Add([]byte("null"), int32(lifecycle.OperatorOperationType_TYPE_EVALUATE))
	f.Fuzz(func(t *testing.T, definition []byte, operation int32) {
		hook(t, definition, lifecycle.OperatorOperationType_Type(operation))
	})
}

func BenchmarkLifecycleHook(b *testing.B) {
	body, err := json.Marshal(instance(b))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		hook(b, body, lifecycle.OperatorOperationType_TYPE_CREATE)
	}
}
