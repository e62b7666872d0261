package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// effort is what the operator and the plugin have done since they started.
type effort struct{ reconciliations, operator, calls, plugin float64 }

// operators prints what the operator and the plugin do in a minute while more and more clusters doze: the operator's
// reconciliations of Clusters, its calls of the plugin, and the processor time of both. Then it wakes another cluster from
// hibernation beside them.
func operators(
	ctx context.Context, kube *scenario.Kubernetes, namespace string, hibernating *cnpgv1.Cluster, much amounts,
) error {
	fmt.Println("\n| clusters that doze | reconciliations a minute | calls of the plugin | " +
		"operator's processor (% of a core) | plugin's | a wake from hibernation (s, median) |\n|---|---|---|---|---|---|")
	most, lasts := much.resting, much.rest
	var clusters []*cnpgv1.Cluster
	for count := 0; ; count = min(count+max(most/2, 1), most) {
		for len(clusters) < count { // few at once: each start takes the whole machine
			more, err := several(ctx, kube, namespace, fmt.Sprintf("rests-%d", len(clusters)), min(5, count-len(clusters)), dozesAfter)
			if err != nil {
				return err
			}
			if err := doze(ctx, kube, more); err != nil {
				return err
			}
			clusters = append(clusters, more...)
		}
		if err := doze(ctx, kube, clusters); err != nil {
			return err
		}
		_ = scenario.Rest(ctx, time.Minute) // what follows a doze
		before, err := spent(ctx, kube)
		if err != nil {
			return err
		}
		_ = scenario.Rest(ctx, lasts)
		after, err := spent(ctx, kube)
		if err != nil {
			return err
		}
		var woken []time.Duration
		for range much.runs {
			took, err := wake(ctx, kube, hibernating, true)
			if err != nil {
				return err
			}
			woken = append(woken, took)
		}
		fmt.Printf("| %d | %.1f | %.1f | %.2f | %.2f | %.2f |\n", count,
			(after.reconciliations-before.reconciliations)/lasts.Minutes(), (after.calls-before.calls)/lasts.Minutes(),
			100*(after.operator-before.operator)/lasts.Seconds(), 100*(after.plugin-before.plugin)/lasts.Seconds(),
			median(woken).Seconds())
		if count >= most {
			return deleteAll(ctx, kube, clusters)
		}
	}
}

// metricsPort is where the operator and the plugin serve their metrics.
const metricsPort = "8080"

// spent reads it from the pages of their pods.
func spent(ctx context.Context, kube *scenario.Kubernetes) (effort, error) {
	var all effort
	ofOthers := func(label *dto.LabelPair) bool {
		return label.GetName() == "controller" && label.GetValue() != "cluster"
	}
	for _, program := range []struct {
		pods            client.MatchingLabels
		counter         string
		work, processor *float64
	}{
		{client.MatchingLabels{"app.kubernetes.io/name": "cloudnative-pg"}, "controller_runtime_reconcile_total", &all.reconciliations, &all.operator},
		{client.MatchingLabels{"app": scenario.PluginDeployment}, "cnpg_scale_to_zero_operator_calls_total", &all.calls, &all.plugin},
	} {
		var pods corev1.PodList
		if err := kube.List(ctx, &pods, client.InNamespace(scenario.OperatorNamespace), program.pods); err != nil {
			return effort{}, fmt.Errorf("list the pods with %s: %w", program.counter, err)
		}
		for i := range pods.Items {
			page, err := kube.Page(ctx, pods.Items[i].Namespace, pods.Items[i].Name, metricsPort, "metrics")
			if err != nil {
				return effort{}, err
			}
			parser := expfmt.NewTextParser(model.UTF8Validation)
			families, err := parser.TextToMetricFamilies(strings.NewReader(page))
			if err != nil {
				return effort{}, fmt.Errorf("parse the metrics of pod %s: %w", pods.Items[i].Name, err)
			}
			*program.processor += families["process_cpu_seconds_total"].GetMetric()[0].GetCounter().GetValue()
			for _, metric := range families[program.counter].GetMetric() {
				if !slices.ContainsFunc(metric.GetLabel(), ofOthers) {
					*program.work += metric.GetCounter().GetValue()
				}
			}
		}
	}
	return all, nil
}
