package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// reconciliation is the operator's annotation that makes it leave a Cluster alone.
const reconciliation = "cnpg.io/reconciliationLoop"

// placements compares two places for the sidecar: an ordinary container, as the plugin injects it, and an init container that
// is always restarted, which Kubernetes calls a sidecar. The operator looks away while its pod is made anew, with the same
// specification but for that place, and with probes every second, or the rhythm of the probes is all that would be seen.
func placements(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster, runs int) (err error) {
	var made corev1.Pod
	if err := kube.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Status.CurrentPrimary}, &made); err != nil {
		return fmt.Errorf("read the pod: %w", err)
	}
	disabled := "disabled"
	if err := kube.Annotate(ctx, c, reconciliation, &disabled); err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = kube.Annotate(ctx, c, reconciliation, nil)
		}
	}()
	ordinary := blueprint(&made)
	native, err := asNativeSidecar(ordinary)
	if err != nil {
		return err
	}
	times := map[*corev1.Pod][]start{}
	for range runs {
		for _, variant := range []*corev1.Pod{ordinary, native} {
			took, err := startPod(ctx, kube, variant)
			if err != nil {
				return err
			}
			times[variant] = append(times[variant], took)
		}
	}
	fmt.Println("\n| what | native sidecar (s) | ordinary container (s) | ratio |\n|---|---|---|---|")
	for _, row := range []struct {
		what string
		part func(start) time.Duration
	}{
		{"pod created to PostgreSQL's container running", func(s start) time.Duration { return s.running }},
		{"pod created to pod ready", func(s start) time.Duration { return s.ready }},
	} {
		a, b := median(parts(times[native], row.part)), median(parts(times[ordinary], row.part))
		fmt.Printf("| %s (median of %d) | %.2f | %.2f | %.2f |\n", row.what, runs, a.Seconds(), b.Seconds(), a.Seconds()/b.Seconds())
	}
	return nil
}

// start is how long after its creation a pod's PostgreSQL was seen to run and the pod to be ready.
type start struct{ running, ready time.Duration }

func parts(starts []start, part func(start) time.Duration) []time.Duration {
	var times []time.Duration
	for _, s := range starts {
		times = append(times, part(s))
	}
	return times
}

// blueprint is what a pod was made of, without what the API server and the scheduler added.
func blueprint(pod *corev1.Pod) *corev1.Pod {
	plain := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels, Annotations: pod.Annotations,
			OwnerReferences: pod.OwnerReferences,
		},
		Spec: *pod.Spec.DeepCopy(),
	}
	plain.Spec.NodeName = ""
	for i := range plain.Spec.Containers {
		for _, probe := range []*corev1.Probe{plain.Spec.Containers[i].StartupProbe, plain.Spec.Containers[i].ReadinessProbe} {
			if probe != nil {
				probe.PeriodSeconds = 1
			}
		}
	}
	return plain
}

// asNativeSidecar moves the sidecar to the end of the init containers.
func asNativeSidecar(pod *corev1.Pod) (*corev1.Pod, error) {
	moved := pod.DeepCopy()
	index := slices.IndexFunc(moved.Spec.Containers, func(c corev1.Container) bool { return c.Name == scenario.SidecarContainer })
	if index < 0 {
		return nil, fmt.Errorf("pod %s has no sidecar", pod.Name)
	}
	sidecar := moved.Spec.Containers[index]
	always := corev1.ContainerRestartPolicyAlways
	sidecar.RestartPolicy = &always
	moved.Spec.Containers = slices.Delete(moved.Spec.Containers, index, index+1)
	moved.Spec.InitContainers = append(moved.Spec.InitContainers, sidecar)
	return moved, nil
}

// startPod replaces the pod of that name and measures how it comes up.
func startPod(ctx context.Context, kube *scenario.Kubernetes, blueprint *corev1.Pod) (start, error) {
	pod := blueprint.DeepCopy()
	if err := kube.Delete(ctx, pod); client.IgnoreNotFound(err) != nil {
		return start{}, fmt.Errorf("delete pod %s: %w", pod.Name, err)
	}
	if err := kube.AwaitGone(ctx, &corev1.PodList{}, pod.Namespace, pod.Name, toHealthy); err != nil {
		return start{}, err
	}
	created := time.Now()
	if err := kube.Create(ctx, pod); err != nil {
		return start{}, fmt.Errorf("create pod %s: %w", pod.Name, err)
	}
	running, err := kube.AwaitPod(ctx, pod, "running PostgreSQL", toHealthy, postgresRuns)
	if err != nil {
		return start{}, err
	}
	ready, err := kube.AwaitPod(ctx, pod, "ready", toHealthy, scenario.Ready)
	return start{running.Sub(created), ready.Sub(created)}, err
}

func postgresRuns(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.Name == "postgres" && s.State.Running != nil
	})
}
