package tests

import (
	"context"
	"fmt"
	"strings"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// diagnose returns what a person would check first after a failed test: pods, Events and logs.
func diagnose(ctx context.Context, namespace string) string {
	var report strings.Builder
	var clusters cnpgv1.ClusterList
	_ = kube.List(ctx, &clusters, client.InNamespace(namespace))
	for _, c := range clusters.Items {
		fmt.Fprintf(&report, "cluster %s: phase %q (%s), primary %s, target %s, ready %d, annotations %v\n", c.Name, c.Status.Phase,
			c.Status.PhaseReason, c.Status.CurrentPrimary, c.Status.TargetPrimary, c.Status.ReadyInstances, c.Annotations)
	}
	var events corev1.EventList
	_ = kube.List(ctx, &events, client.InNamespace(namespace))
	for _, e := range events.Items {
		fmt.Fprintf(&report, "event %s %s %s/%s: %s\n", e.LastTimestamp.Format("15:04:05"), e.Reason,
			e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message)
	}
	var pods corev1.PodList
	_ = kube.List(ctx, &pods, client.InNamespace(namespace))
	for _, pod := range pods.Items {
		fmt.Fprintf(&report, "pod %s: %s\n", pod.Name, pod.Status.Phase)
		for _, container := range pod.Spec.Containers {
			if container.Name == scenario.SidecarContainer {
				log, err := kube.Logs(ctx, namespace, pod.Name, container.Name)
				fmt.Fprintf(&report, "log of %s (%v):\n%s\n", pod.Name, err, log)
			}
		}
	}
	var plugins corev1.PodList
	_ = kube.List(ctx, &plugins, client.InNamespace(scenario.OperatorNamespace), client.MatchingLabels{"app": scenario.PluginDeployment})
	for _, pod := range plugins.Items {
		log, err := kube.Logs(ctx, scenario.OperatorNamespace, pod.Name, "")
		fmt.Fprintf(&report, "log of %s (%v):\n%s\n", pod.Name, err, log)
	}
	return report.String()
}
