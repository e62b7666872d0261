package cnpgi

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloudnative-pg/cnpg-i/pkg/lifecycle"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// dozing is the definition of a cluster with so many instances and the annotations that have it doze, and others.
func dozing(t *testing.T, instances int, others ...string) []byte {
	t.Helper()
	annotations := map[string]string{"xata.io/scale-to-zero-enabled": "true", "xata.io/scale-to-zero-doze-minutes": "5"}
	for _, other := range others {
		key, value, _ := strings.Cut(other, "=")
		if annotations["xata.io/scale-to-zero-"+key] = value; value == "" {
			delete(annotations, "xata.io/scale-to-zero-"+key)
		}
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": annotations}, "spec": map[string]any{"instances": instances},
	})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// answered is the pod after the hook was asked about it.
func answered(t *testing.T, pod []byte, cluster []byte, operation lifecycle.OperatorOperationType_Type) []byte {
	t.Helper()
	server := &Lifecycle{Sidecar: configured(), AtOnce: true, LimitRanges: unlimited, Observer: &observed{}, Logger: slog.New(slog.DiscardHandler)}
	answer, err := server.LifecycleHook(t.Context(), &lifecycle.OperatorLifecycleRequest{
		ObjectDefinition: pod, ClusterDefinition: cluster, OperationType: &lifecycle.OperatorOperationType{Type: operation},
	})
	if err != nil {
		t.Fatal(err)
	}
	return patched(t, pod, answer)
}

// burstable is an instance with requests below its limits.
func burstable(t *testing.T) []byte {
	t.Helper()
	return encode(t, instanceWith(t, corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("512Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi")},
	}))
}

func encode(t *testing.T, pod *corev1.Pod) []byte {
	t.Helper()
	body, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func TestLifecycleHook_preparesOnlyAPodThatMayDoze(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule      string
		cluster   []byte
		operation lifecycle.OperatorOperationType_Type
		prepared  bool
	}{
		{"a new pod of a cluster of one instance is prepared", dozing(t, 1), create, true},
		{"a plan is not, even of the real form, or every instance would be rolled", dozing(t, 1), evaluate, false},
		{"with standbys it hibernates", dozing(t, 2), create, false},
		{"without the annotation it does not doze", dozing(t, 1, "doze-minutes="), create, false},
		{"nor while the feature is off", dozing(t, 1, "enabled=false"), create, false},
		{"nor with a bad value", dozing(t, 1, "inactivity-minutes=4"), create, false},
		{"nor is a Cluster that cannot be read", []byte(`{`), create, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			body := string(answered(t, burstable(t), row.cluster, row.operation))
			for _, part := range []string{`"tcpSocket":{"port":9190}`, `"READINESS_PORT"`, `"10m"`} {
				if got := strings.Contains(body, part); got != row.prepared {
					t.Errorf("%s is there: %t, want %t", part, got, row.prepared)
				}
			}
		})
	}
	t.Run("the sidecar is told to what the memory request shrinks", func(t *testing.T) {
		t.Parallel()
		for _, memory := range []string{"", "64Mi"} {
			var pod corev1.Pod
			if err := json.Unmarshal(burstable(t), &pod); err != nil {
				t.Fatal(err)
			}
			injected, err := injectSidecar(&pod, configured())
			if err != nil {
				t.Fatal(err)
			}
			prepareSidecar(injected, memory)
			if got := variable(&injected.Spec.Containers[1], "DOZE_MEMORY_REQUEST"); got != memory {
				t.Errorf("it is told %q, want %q", got, memory)
			}
		}
	})
	t.Run("asked once more, nothing changes", func(t *testing.T) {
		t.Parallel()
		once := answered(t, burstable(t), dozing(t, 1), create)
		if diff := cmp.Diff(string(once), string(answered(t, once, dozing(t, 1), create))); diff != "" {
			t.Errorf("the pod (-once +again):\n%s", diff)
		}
	})
}

// What a pod that may doze has and another has not.
func TestGoldenDoze(t *testing.T) {
	t.Parallel()
	var without, with corev1.Pod
	for pod, cluster := range map[*corev1.Pod][]byte{&without: dozing(t, 2), &with: dozing(t, 1)} {
		if err := json.Unmarshal(answered(t, burstable(t), cluster, create), pod); err != nil {
			t.Fatal(err)
		}
	}
	sidecar, plain := &with.Spec.Containers[1], &without.Spec.Containers[1]
	got, err := yaml.Marshal(map[string]any{
		"env": sidecar.Env[len(plain.Env):], "readinessProbe": sidecar.ReadinessProbe, "bootstrap-controller": with.Spec.InitContainers[0].Resources,
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "doze.yaml")
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
	sidecar.Env, sidecar.ReadinessProbe = plain.Env, plain.ReadinessProbe
	with.Spec.InitContainers[0].Resources = without.Spec.InitContainers[0].Resources
	if diff := cmp.Diff(without, with); diff != "" {
		t.Errorf("something else was changed (-without +with):\n%s", diff)
	}
}

func TestShrinkBootstrapRequests(t *testing.T) {
	t.Parallel()
	list := func(cpu, memory string) corev1.ResourceList {
		quantities := corev1.ResourceList{}
		for name, value := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
			if value != "" {
				quantities[name] = resource.MustParse(value)
			}
		}
		return quantities
	}
	type resources = corev1.ResourceRequirements
	for _, row := range []struct {
		rule       string
		have, want resources
	}{
		{"requests shrink", resources{Requests: list("2", "1Gi")}, resources{Requests: list("10m", "64Mi")}},
		{"limits stay", resources{Requests: list("1", "1Gi"), Limits: list("2", "2Gi")}, resources{Requests: list("10m", "64Mi"), Limits: list("2", "2Gi")}},
		{"a limit alone is the request, too", resources{Limits: list("", "1Gi")}, resources{Requests: list("", "64Mi"), Limits: list("", "1Gi")}},
		{"smaller ones stay", resources{Requests: list("5m", "32Mi")}, resources{Requests: list("5m", "32Mi")}},
		{"without any there is none", resources{}, resources{}},
		{"a Guaranteed pod stays as it is", resources{Requests: list("2", "1Gi"), Limits: list("2", "1Gi")}, resources{Requests: list("2", "1Gi"), Limits: list("2", "1Gi")}},
		{"so does one with limits alone", resources{Limits: list("2", "1Gi")}, resources{Limits: list("2", "1Gi")}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			before := instanceWith(t, row.have)
			pod := before.DeepCopy()
			shrinkBootstrapRequests(pod, nil)
			if diff := cmp.Diff(row.want, pod.Spec.InitContainers[0].Resources); diff != "" {
				t.Errorf("resources (-want +got):\n%s", diff)
			}
			if guaranteed(before) != guaranteed(pod) || allowsGuaranteed(row.have) != guaranteed(pod) {
				t.Error("the pod's class has changed")
			}
			if diff := cmp.Diff(before.Spec.Containers, pod.Spec.Containers); diff != "" {
				t.Errorf("PostgreSQL's container has changed:\n%s", diff)
			}
		})
	}
}
