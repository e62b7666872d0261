package cnpgi

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cloudnative-pg/cloudnative-pg/pkg/specs"
	"github.com/cloudnative-pg/cnpg-i/pkg/lifecycle"
	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	create   = lifecycle.OperatorOperationType_TYPE_CREATE
	evaluate = lifecycle.OperatorOperationType_TYPE_EVALUATE
)

// instance is a pod created by the operator's own code.
func instance(t testing.TB) *corev1.Pod {
	t.Helper()
	return instanceWith(t, corev1.ResourceRequirements{})
}

// instanceWith is such a pod with requests and limits for PostgreSQL.
func instanceWith(t testing.TB, resources corev1.ResourceRequirements) *corev1.Pod {
	t.Helper()
	pod, err := specs.NewInstance(context.Background(), clusterOf(resources), 1, true)
	if err != nil {
		t.Fatal(err)
	}
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	return pod
}

func clusterOf(resources corev1.ResourceRequirements) cnpgv1.Cluster {
	cluster := cnpgv1.Cluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: "postgresql.cnpg.io/v1", Kind: "Cluster"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", UID: "u"},
		Spec: cnpgv1.ClusterSpec{
			Instances: 3, ImageName: "example.org/postgresql:17.5", Resources: resources, StorageConfiguration: cnpgv1.StorageConfiguration{Size: "1Gi"},
		},
	}
	cluster.SetDefaults()
	return cluster
}

func configured() Sidecar {
	quantities := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("96Mi")}
	larger := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	return Sidecar{
		Image: "example.org/sidecar:v7", LogLevel: "debug", Group: "postgresql.cnpg.io", Version: "v1",
		Resources: Sidecars{
			Burstable:  corev1.ResourceRequirements{Requests: quantities, Limits: quantities},
			Guaranteed: corev1.ResourceRequirements{Requests: larger, Limits: larger},
		},
	}
}

// observed records the outcomes of the hook.
type observed struct {
	results []Result
	reasons []string
}

func (o *observed) Injected(_ string, result Result) { o.results = append(o.results, result) }
func (o *observed) NotInjected(of metav1.ObjectMeta, why string) {
	o.reasons = append(o.reasons, of.Namespace+"/"+of.Name+": "+why)
}

// unlimited is a namespace without LimitRanges.
func unlimited(context.Context, string) ([]corev1.LimitRange, error) { return nil, nil }

func hook(t testing.TB, definition []byte, operation lifecycle.OperatorOperationType_Type) (*lifecycle.OperatorLifecycleResponse, *observed) {
	t.Helper()
	return hookOf(t, definition, []byte(`{}`), operation)
}

func hookOf(t testing.TB, definition, cluster []byte, operation lifecycle.OperatorOperationType_Type) (*lifecycle.OperatorLifecycleResponse, *observed) {
	t.Helper()
	o := &observed{}
	server := &Lifecycle{Sidecar: configured(), LimitRanges: unlimited, Observer: o, Logger: slog.New(slog.DiscardHandler)}
	answer, err := server.LifecycleHook(context.Background(), &lifecycle.OperatorLifecycleRequest{
		ObjectDefinition: definition, ClusterDefinition: cluster,
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
		{"EVALUATE gives the constant form", encoded(same), evaluate, ResultInjected, placeholderImage},
		{"CREATE gives the real one", encoded(same), create, ResultInjected, "example.org/sidecar:v7"},
		{"other operations are none of our business", encoded(same), lifecycle.OperatorOperationType_TYPE_DELETE, ResultSkipped, ""},
		{"pods of jobs are left alone", encoded(func(p *corev1.Pod) { p.Labels["cnpg.io/podRole"] = "pooler" }), create, ResultSkipped, ""},
		{"a pod without a place is left alone", encoded(func(p *corev1.Pod) { p.Spec.Containers[0].Env = nil }), create, ResultMissing, ""},
		{"what cannot be read is left alone", []byte("{"), create, ResultUnreadable, ""},
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
			if (row.want == ResultMissing) != (len(o.reasons) == 1) {
				t.Errorf("the reasons are %v", o.reasons)
			}
		})
	}
}

func TestLifecycleHook_saysWhichClusterHasNoPlace(t *testing.T) {
	t.Parallel()
	pod := instance(t)
	pod.Spec.Containers[0].Name = "other"
	body, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	o := &observed{}
	server := &Lifecycle{Sidecar: configured(), LimitRanges: unlimited, Observer: o, Logger: slog.New(slog.DiscardHandler)}
	if _, err := server.LifecycleHook(t.Context(), &lifecycle.OperatorLifecycleRequest{
		ObjectDefinition: body, ClusterDefinition: managedCluster(t), OperationType: &lifecycle.OperatorOperationType{Type: create},
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{`shop/orders: the pod has no container "postgres"`}, o.reasons); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
}

// patched is the pod after the operator has applied the answer's patch.
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

// The operator plans the pod with EVALUATE and passes that plan to CREATE, so CREATE's patch must contain all settings that
// differ from the placeholder.
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
	planned := apply(asked, evaluate)
	made := apply(planned, create)
	want, err := injectSidecar(instance(t), configured())
	if err != nil {
		t.Fatal(err)
	}
	setStartupProbePeriod(want)
	addPreStopHook(want)
	var got corev1.Pod
	if err := json.Unmarshal(made, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, &got); diff != "" {
		t.Errorf("the pod (-want +got):\n%s", diff)
	}
	if again := apply(made, create); !jsonpatch.Equal(made, again) {
		t.Errorf("asked once more the pod changes:\n%s", cmp.Diff(string(made), string(again)))
	}
}

// A new image rolls only the clusters that opted in.
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
				server := &Lifecycle{Sidecar: sidecar, AtOnce: row.atOnce, LimitRanges: unlimited, Observer: &observed{}, Logger: slog.New(slog.DiscardHandler)}
				answer, err := server.LifecycleHook(t.Context(), &lifecycle.OperatorLifecycleRequest{
					ObjectDefinition: body, ClusterDefinition: []byte(row.cluster),
					OperationType: &lifecycle.OperatorOperationType{Type: evaluate},
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

func FuzzHookNeverFails(f *testing.F) {
	body, err := json.Marshal(instance(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body, []byte(`{"spec":{"probes":{"startup":{"periodSeconds":5}}}}`), int32(create))
	f.Add([]byte("null"), []byte("{"), int32(evaluate))
	f.Fuzz(func(t *testing.T, definition, cluster []byte, operation int32) {
		hookOf(t, definition, cluster, lifecycle.OperatorOperationType_Type(operation))
	})
}
