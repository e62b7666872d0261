package tests

import (
	"math"
	"os"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/e2e/monitoring"
	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// withoutData are the queries of the dashboard that have no data while all is well, and why.
var withoutData = map[string]string{
	"panel Looks that failed A":            "no look fails",
	"panel Without the kernel's reports A": "the kernel reports",
}

// A real Prometheus with the shipped rules and monitors sees a cluster sleep and wake: every query of the dashboard has
// data, every series that an alert asks for is there, every rule is evaluated, and none fires for what went well.
func TestPrometheusSeesASleepAndAWake(t *testing.T) {
	program := os.Getenv("PROMETHEUS")
	if program == "" {
		t.Skip("PROMETHEUS is not set: it is the path that `go -C e2e run ./cmd/cluster prometheus` prints")
	}
	t.Parallel()
	s := begin(t)
	shipped, err := monitoring.Read("../..")
	s.must(err)
	c := kube.NewCluster(s.namespace, "seen", 1, never)
	c.Spec.Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("128Mi"),
	}
	s.running(c)
	s.must(kube.Create(s.ctx, scenario.NewScheduledBackup(c, "yearly", "0 0 0 1 1 *")))

	began := time.Now()
	p := s.prometheus(program, shipped, c)
	own := func(expression string) string {
		return strings.ReplaceAll(expression, "OWN", `namespace="`+s.namespace+`", cluster="seen"`)
	}
	s.must(p.Await(s.ctx, own(`cnpg_scale_to_zero_cluster_state{state="awake", OWN} == 1 and on () cnpg_scale_to_zero_samples_total{OWN} and on () cnpg_collector_up{OWN}`), time.Minute))
	session := s.open(c, "rw")
	s.must(p.Await(s.ctx, own(`cnpg_scale_to_zero_blocked{reason="active", OWN} == 1`), 2*time.Minute))
	session.Close()
	s.sleeps(c)
	s.must(p.Await(s.ctx, own(`cnpg_scale_to_zero_cluster_state{state="asleep", OWN} == 1 and on (namespace, cluster) cnpg_scale_to_zero_suspended_schedules == 1`), time.Minute))
	s.must(p.Await(s.ctx, own(`increase(cnpg_scale_to_zero_saved_cpu_seconds_total{OWN}[1m]) > 0`), time.Minute))
	_, err = kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 1")
	s.must(err)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.must(p.Await(s.ctx, own(`cnpg_scale_to_zero_cluster_state{state="awake", OWN} == 1 and on (namespace, cluster) cnpg_scale_to_zero_suspended_schedules == 0`), time.Minute))
	s.must(p.Await(s.ctx, own(`changes(cnpg_scale_to_zero_cluster_state{state="asleep", OWN}[10m]) == 2 and on () cnpg_scale_to_zero_idle_seconds{OWN}`), time.Minute))

	// Subqueries are evaluated at whole five minutes of the clock: the last step is the next of them.
	const step, aligned = 2 * time.Second, 5 * time.Minute
	seen := run{story: s, Prometheus: p, Range: prometheusv1.Range{
		Start: began.Truncate(step), End: time.Now().Truncate(aligned).Add(aligned), Step: step,
	}}
	seen.dashboard(shipped, c)
	seen.rules(shipped)
}

// prometheus starts a Prometheus with what is shipped, and with CloudNativePG's own metrics of the cluster, as its
// documentation has them scraped.
func (s *story) prometheus(program string, shipped monitoring.Shipped, c *cnpgv1.Cluster) *scenario.Prometheus {
	s.Helper()
	operators, err := monitoring.OfPods(&monitoringv1.PodMonitor{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name},
		Spec: monitoringv1.PodMonitorSpec{
			Selector:            metav1.LabelSelector{MatchLabels: map[string]string{"cnpg.io/cluster": c.Name}},
			PodMetricsEndpoints: []monitoringv1.PodMetricsEndpoint{{Port: ptr.To("metrics")}},
		},
	})
	s.must(err)
	p, err := kube.StartPrometheus(s.ctx, program, s.TempDir(), append(shipped.Monitors, operators), shipped.Rules.Spec)
	s.must(err)
	s.Cleanup(func() {
		if err := p.Stop(); err != nil {
			s.Error(err)
		}
	})
	return p
}

// run is what a Prometheus saw in a time.
type run struct {
	*story
	*scenario.Prometheus
	prometheusv1.Range
}

// dashboard demands data of every query of the dashboard, with its variables set to the cluster.
func (r run) dashboard(shipped monitoring.Shipped, c *cnpgv1.Cluster) {
	r.Helper()
	queries, err := shipped.Queries()
	r.must(err)
	chosen := strings.NewReplacer("$__rate_interval", "1m", "$__range", "1d",
		"$namespace", c.Namespace, "$cluster", c.Name, "$operatorNamespace", scenario.OperatorNamespace)
	for _, query := range queries {
		text := chosen.Replace(query.Text)
		switch why := withoutData[query.Where]; {
		case r.has(query.Where, text):
		case why != "":
			r.Logf("%s has no data: %s", query.Where, why)
		default:
			r.Errorf("%s has no data: %s", query.Where, text)
		}
	}
	r.Logf("%d queries of the dashboard", len(queries))
}

// rules demands that every rule is evaluated, that each series that it asks for is there, and that none fires in the namespace.
func (r run) rules(shipped monitoring.Shipped) {
	r.Helper()
	selectors := map[string]string{}
	for _, alert := range shipped.Alerts() {
		expression, err := parser.ParseExpr(alert.Expr.String())
		r.must(err)
		parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
			if selector, is := node.(*parser.VectorSelector); is {
				now := parser.VectorSelector{Name: selector.Name, LabelMatchers: selector.LabelMatchers} // without its offset
				selectors[now.String()] = alert.Alert
			}
			return nil
		})
	}
	for selector, alert := range selectors {
		if !r.has(alert, selector) {
			r.Errorf("%s asks for %s, and there is none", alert, selector)
		}
	}
	evaluated, err := r.Rules(r.ctx)
	r.must(err)
	count := 0
	for _, group := range evaluated.Groups {
		for _, rule := range group.Rules {
			var health prometheusv1.RuleHealth
			switch is := rule.(type) {
			case prometheusv1.AlertingRule:
				health = is.Health
			case prometheusv1.RecordingRule:
				health = is.Health
			}
			if health != prometheusv1.RuleHealthGood {
				r.Errorf("the rule is not evaluated: %+v", rule)
			}
			count++
		}
	}
	if want := len(shipped.Alerts()) + len(shipped.Records()); count != want {
		r.Errorf("Prometheus has %d rules, want %d", count, want)
	}
	if firing := `ALERTS{alertstate="firing", namespace="` + r.namespace + `"}`; r.has("ALERTS", firing) {
		r.Error("an alert fires for what went well")
	}
	r.Logf("%d rules, %d selectors", count, len(selectors))
}

// has tells whether the expression had a value, at any time of the run, that is a number.
func (r run) has(where, expression string) bool {
	r.Helper()
	value, _, err := r.QueryRange(r.ctx, expression, r.Range)
	if err != nil {
		r.Errorf("%s: %v", where, err)
		return true
	}
	for _, series := range value.(model.Matrix) {
		for _, point := range series.Values {
			if !math.IsNaN(float64(point.Value)) {
				return true
			}
		}
	}
	return false
}
