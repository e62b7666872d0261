package tests

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"os/exec"
	"slices"
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
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/e2e/alertmanager"
	"github.com/cnpg-i/scale-to-zero/e2e/monitoring"
	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// withoutData are the dashboard's queries that have no data while all is well, and why.
var withoutData = map[string]string{
	"panel Samples that failed A":                    "no sample fails",
	"panel Without the kernel's reports A":           "the kernel reports",
	"panel Without a route to the gateway A":         "every Service leads there",
	"panel Observed clusters that would be asleep A": "the cluster is not observed",
	"panel Observed, and what keeps it awake A":      "the cluster is not observed",
}

// A real Prometheus with the shipped rules and monitors sees a cluster sleep and wake: every dashboard query has data, every
// series in an alert exists, and every rule is evaluated. A real Alertmanager inhibits the
// alert of CloudNativePG's cluster chart for a cluster without instances while it sleeps.
func TestPrometheusSeesASleepAndAWake(t *testing.T) {
	t.Parallel()
	program := provided(t, "PROMETHEUS")
	s := begin(t)
	shipped, err := monitoring.Read("../..")
	s.must(err)
	c := kube.NewCluster(s.namespace, "seen", 1, never)
	c.Annotations[scenario.BackupMaxAge] = "365d"
	c.Spec.Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("128Mi"),
	}
	s.running(c)
	s.must(kube.Create(s.ctx, scenario.NewScheduledBackup(c, "yearly", "0 0 0 1 1 *")))

	began := time.Now()
	notified := s.alertmanager()
	p := s.prometheus(program, shipped, c, notified)
	own := func(expression string) string {
		return strings.ReplaceAll(expression, "OWN", `namespace="`+s.namespace+`", cluster="seen"`)
	}
	s.must(p.Await(s.ctx, own(`cnpg_scale_to_zero_cluster_state{state="awake", OWN} == 1 and on () cnpg_scale_to_zero_samples_total{OWN} and on () cnpg_collector_up{OWN}`), toHealthy))
	session := s.open(c, "rw")
	stop := s.looking(c, 2*time.Second) // opening a session does not make the sidecar sample
	s.must(p.Await(s.ctx, own(`cnpg_scale_to_zero_blocked{reason="active", OWN} == 1`), toHealthy))
	stop()
	session.Close()
	s.sleeps(c)
	s.must(p.Await(s.ctx, own(`cnpg_scale_to_zero_cluster_state{state="asleep", OWN} == 1 and on (namespace, cluster) cnpg_scale_to_zero_suspended_schedules == 1`), toHealthy))
	s.must(p.Await(s.ctx, own(`increase(cnpg_scale_to_zero_saved_cpu_seconds_total{OWN}[1m]) > 0`), toHealthy))
	s.heldBack(p, notified)
	_, err = kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 1")
	s.must(err)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.must(p.Await(s.ctx, own(`cnpg_scale_to_zero_cluster_state{state="awake", OWN} == 1 and on (namespace, cluster) cnpg_scale_to_zero_suspended_schedules == 0`), toHealthy))
	s.must(p.Await(s.ctx, own(`changes(cnpg_scale_to_zero_cluster_state{state="asleep", OWN}[10m]) >= 2 and on () cnpg_scale_to_zero_idle_seconds{OWN}`), toHealthy))
	// The replica that woke the cluster counts the wake; what was awaited above may come from the other replica.
	s.must(p.Await(s.ctx, own(`increase(cnpg_scale_to_zero_cluster_wakes_total{result="success", OWN}[10m]) > 0`), toHealthy))
	s.reported(p, c)

	// Subqueries are evaluated at multiples of five minutes: the last step is the next one.
	const step, aligned = 2 * time.Second, 5 * time.Minute
	seen := run{story: s, prometheus: p, Range: prometheusv1.Range{
		Start: began.Truncate(step), End: time.Now().Truncate(aligned).Add(aligned), Step: step,
	}}
	seen.dashboard(shipped, c)
	seen.rules(shipped)
}

// reported waits until the report of the Prometheus names the user of a session that is open at a full minute, and shows the
// time asleep as unknown.
func (s *story) reported(p *prometheus, c *cnpgv1.Cluster) {
	s.Helper()
	program := s.command()
	session, err := kube.OpenAs(s.ctx, c, "rw", "application_name=shop")
	s.must(err)
	defer session.Close()
	type user struct{ User, Application string }
	want := user{"app", "shop"}
	ctx, cancel := context.WithTimeout(s.ctx, toHealthy)
	defer cancel()
	for {
		var complaint strings.Builder
		command := exec.CommandContext(ctx, program, "report", "--prometheus", p.address, "--since", "1h", "-n", c.Namespace,
			"-o", `jsonpath-as-json={.clusters[?(@.cluster=="`+c.Name+`")]}`)
		command.Stderr = &complaint
		out, err := command.Output()
		if err != nil {
			s.Fatalf("report: %v: %s", err, complaint.String())
		}
		var clusters []struct {
			KnownShare float64
			UsedBy     []user
		}
		s.must(json.Unmarshal(out, &clusters))
		if len(clusters) == 1 && clusters[0].KnownShare > 0 && clusters[0].KnownShare < 1 && slices.Contains(clusters[0].UsedBy, want) {
			return
		}
		if scenario.Rest(ctx, time.Second) != nil {
			s.Fatalf("the report does not show the session, but %s", out)
		}
	}
}

// offlineFor is how long the cluster chart's alert must be pending here, instead of its five minutes, and no less than the
// rules need to report a sleeping cluster.
const offlineFor = "45s"

// offline is the cluster chart's alert for a cluster without instances, as in e2e/monitoring/testdata.
func offline(namespace, cluster string) monitoringv1.Rule {
	return monitoringv1.Rule{
		Alert:  "CNPGClusterOffline",
		Expr:   intstr.FromString(`(count(cnpg_collector_up{namespace="` + namespace + `",pod=~"` + cluster + `-([1-9][0-9]*)$"}) OR on() vector(0)) == 0`),
		For:    ptr.To(monitoringv1.Duration(offlineFor)),
		Labels: map[string]string{"severity": "critical", "namespace": namespace, "cnpg_cluster": cluster},
	}
}

// alertmanager starts an Alertmanager with the shipped configuration.
func (s *story) alertmanager() *alertmanager.Alertmanager {
	s.Helper()
	program := provided(s.T, "ALERTMANAGER")
	directory := s.TempDir()
	ctx, stop := context.WithCancel(s.ctx)
	s.Cleanup(stop)
	a, err := alertmanager.Start(ctx, program, "../../manifests/components/monitoring/alertmanager.yaml", directory)
	s.must(err)
	s.Cleanup(func() { // before the directory is removed
		stop()
		a.Wait()
	})
	return a
}

// heldBack waits until Alertmanager has the chart's alert for the sleeping cluster and for one that never existed, and checks
// that it notifies only of the latter.
func (s *story) heldBack(p *prometheus, a *alertmanager.Alertmanager) {
	s.Helper()
	s.must(p.Await(s.ctx, `ALERTS{alertname="CNPGClusterOffline", alertstate="firing", namespace="`+s.namespace+`", cnpg_cluster="seen"}`, toHealthy))
	want := map[string]bool{"CNPGClusterOffline dead": true, "CNPGClusterOffline seen": false, "ScaleToZeroAsleep seen": false}
	told := func(states []alertmanager.State) map[string]bool {
		found := map[string]bool{}
		for _, state := range states {
			if state.Labels["namespace"] == s.namespace {
				found[state.Labels["alertname"]+" "+state.Labels["cnpg_cluster"]] = state.Told()
			}
		}
		return found
	}
	states, err := a.Await(s.ctx, toHealthy, func(states []alertmanager.State) bool { return maps.Equal(told(states), want) })
	s.must(err)
	if got := told(states); !maps.Equal(got, want) {
		s.Errorf("people are notified of %v, want %v", got, want)
	}
}

// prometheus starts a Prometheus with the shipped configuration, the alert of the cluster chart, and CloudNativePG's own
// metrics of the cluster, scraped as its documentation says.
func (s *story) prometheus(program string, shipped monitoring.Shipped, c *cnpgv1.Cluster, a *alertmanager.Alertmanager) *prometheus {
	s.Helper()
	operators, err := monitoring.OfPods(&monitoringv1.PodMonitor{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name},
		Spec: monitoringv1.PodMonitorSpec{
			Selector:            metav1.LabelSelector{MatchLabels: map[string]string{"cnpg.io/cluster": c.Name}},
			PodMetricsEndpoints: []monitoringv1.PodMetricsEndpoint{{Port: ptr.To("metrics")}},
		},
	})
	s.must(err)
	rules := *shipped.Rules.Spec.DeepCopy()
	rules.Groups = append(rules.Groups, monitoringv1.RuleGroup{
		Name: "cloudnative-pg", Rules: []monitoringv1.Rule{offline(c.Namespace, c.Name), offline(c.Namespace, "dead")},
	})
	p, err := startPrometheus(s.ctx, program, s.TempDir(), append(shipped.Monitors, operators), rules, a.Address)
	s.must(err)
	s.Cleanup(func() {
		if err := p.Stop(); err != nil {
			s.Error(err)
		}
	})
	return p
}

// run is what a Prometheus recorded in a time range.
type run struct {
	*story
	*prometheus
	prometheusv1.Range
}

// dashboard checks that every dashboard query has data, with its variables set to the cluster.
func (r run) dashboard(shipped monitoring.Shipped, c *cnpgv1.Cluster) {
	r.Helper()
	queries, err := shipped.Queries()
	r.must(err)
	chosen := map[string]string{
		"__rate_interval": "1m", "namespace": c.Namespace, "cluster": c.Name, "detail": c.Name, "operatorNamespace": scenario.OperatorNamespace,
	}
	for _, query := range queries {
		text := shipped.Fill(query.Text, chosen)
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

// rules checks that every rule is evaluated, and that each of its series exists.
func (r run) rules(shipped monitoring.Shipped) {
	r.Helper()
	selectors := map[string]string{}
	for _, alert := range shipped.Alerts() {
		expression, err := parser.ParseExpr(alert.Expr.String())
		r.must(err)
		parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
			if selector, is := node.(*parser.VectorSelector); is && selector.Name != "ALERTS" { // of which there are none when all is well
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
	evaluated, err := r.Rules(r.ctx, nil)
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
	const chart = 2 // rules of the cluster chart
	if want := len(shipped.Alerts()) + len(shipped.Records()) + chart; count != want {
		r.Errorf("Prometheus has %d rules, want %d", count, want)
	}
	r.Logf("%d rules, %d selectors", count, len(selectors))
}

// has reports whether the expression had a value other than NaN at any time of the run.
func (r run) has(where, expression string) bool {
	r.Helper()
	value, _, _, err := r.QueryRange(r.ctx, expression, r.Range)
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
