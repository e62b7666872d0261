package cnpgi

import (
	"encoding/json"
	"log/slog"
	"math"
	"strings"
	"testing"

	"github.com/cloudnative-pg/cnpg-i/pkg/lifecycle"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func startupProbe(delay, period, threshold int32) *corev1.Probe {
	return &corev1.Probe{InitialDelaySeconds: delay, PeriodSeconds: period, FailureThreshold: threshold, TimeoutSeconds: 5}
}

func TestSetStartupProbePeriod(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule       string
		have, want *corev1.Probe
	}{
		{"the time allowed stays the same", startupProbe(0, 10, 360), startupProbe(0, 1, 3600)},
		{"a delay becomes part of it", startupProbe(30, 5, 6), startupProbe(0, 1, 60)},
		{"what is not set is Kubernetes' default", startupProbe(0, 0, 0), startupProbe(0, 1, 30)},
		{"a probe of one second stays", startupProbe(0, 1, 7), startupProbe(0, 1, 7)},
		{"a threshold that is too large is the largest", startupProbe(0, 10, math.MaxInt32), startupProbe(0, 1, math.MaxInt32)},
		{"without a probe there is none", nil, nil},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			pod := instance(t)
			pod.Spec.Containers[0].StartupProbe = row.have
			setStartupProbePeriod(pod)
			if diff := cmp.Diff(row.want, pod.Spec.Containers[0].StartupProbe); diff != "" {
				t.Errorf("probe (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSetSidecarStartupProbePeriods(t *testing.T) {
	t.Parallel()
	always := ptr.To(corev1.ContainerRestartPolicyAlways)
	command := corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/manager", "healthcheck", "unix"}}}
	for _, row := range []struct {
		rule       string
		have, want corev1.Container
	}{
		{"a backup plugin's command is run every second for the same time",
			corev1.Container{RestartPolicy: always, StartupProbe: &corev1.Probe{ProbeHandler: command, FailureThreshold: 10, TimeoutSeconds: 10}},
			corev1.Container{RestartPolicy: always, StartupProbe: &corev1.Probe{ProbeHandler: command, PeriodSeconds: 1, FailureThreshold: 100, TimeoutSeconds: 10}}},
		{"a delay becomes part of the time",
			corev1.Container{RestartPolicy: always, StartupProbe: startupProbe(15, 5, 3)},
			corev1.Container{RestartPolicy: always, StartupProbe: startupProbe(0, 1, 30)}},
		{"one without a startup probe stays as it is",
			corev1.Container{RestartPolicy: always, ReadinessProbe: startupProbe(0, 10, 3)},
			corev1.Container{RestartPolicy: always, ReadinessProbe: startupProbe(0, 10, 3)}},
		{"an init container that ends has no startup probe of ours", corev1.Container{}, corev1.Container{}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			pod := instance(t)
			before := pod.DeepCopy()
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, row.have)
			setSidecarStartupProbePeriods(pod)
			before.Spec.InitContainers = append(before.Spec.InitContainers, row.want)
			if diff := cmp.Diff(before, pod); diff != "" {
				t.Errorf("pod (-want +got):\n%s", diff)
			}
		})
	}
}

// Other sidecars' probes are shortened only in a new pod; otherwise every instance with such a sidecar would be rolled.
func TestLifecycleHook_shortensOtherSidecarsProbes(t *testing.T) {
	t.Parallel()
	pod := instance(t)
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{
		Name: "plugin-backup", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), StartupProbe: startupProbe(0, 10, 10),
	})
	body, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		rule, cluster string
		setting       bool
		operation     lifecycle.OperatorOperationType_Type
		want          int32
	}{
		{"in a new pod it is a second", `{}`, true, create, 1},
		{"in a plan it stays", `{}`, true, evaluate, 10},
		{"the setting leaves it as it is", `{}`, false, create, 10},
		{"a probe of PostgreSQL's that the user set is another one", `{"spec":{"probes":{"startup":{"periodSeconds":5}}}}`, true, create, 1},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			server := &Lifecycle{Sidecar: configured(), SidecarProbes: row.setting, LimitRanges: unlimited, Observer: &observed{}, Logger: slog.New(slog.DiscardHandler)}
			answer, err := server.LifecycleHook(t.Context(), &lifecycle.OperatorLifecycleRequest{
				ObjectDefinition: body, ClusterDefinition: []byte(row.cluster), OperationType: &lifecycle.OperatorOperationType{Type: row.operation},
			})
			if err != nil {
				t.Fatal(err)
			}
			var got corev1.Pod
			if err := json.Unmarshal(patched(t, body, answer), &got); err != nil {
				t.Fatal(err)
			}
			probe := got.Spec.InitContainers[len(got.Spec.InitContainers)-1].StartupProbe
			if probe.PeriodSeconds != row.want || probe.PeriodSeconds*probe.FailureThreshold != 100 {
				t.Errorf("it probes %d times every %d s", probe.FailureThreshold, probe.PeriodSeconds)
			}
		})
	}
}

// A new pod's probe is shortened unless the user configured it. That of a plan is unchanged, or every instance would be rolled.
func TestLifecycleHook_shortensOnlyTheOperatorsProbe(t *testing.T) {
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
		{"a new pod's is quick", `{"spec":{"instances":1}}`, create, true},
		{"a plan's is not", `{"spec":{"instances":1}}`, evaluate, false},
		{"the user's own stays", `{"spec":{"probes":{"startup":{"periodSeconds":5}}}}`, create, false},
		{"another probe of the user's does not matter", `{"spec":{"probes":{"readiness":{"periodSeconds":5}}}}`, create, true},
		{"a definition that cannot be read may have one", `{`, create, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			server := &Lifecycle{Sidecar: configured(), LimitRanges: unlimited, Observer: &observed{}, Logger: slog.New(slog.DiscardHandler)}
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
