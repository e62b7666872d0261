package monitoring

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

func shipped(t *testing.T) Shipped {
	t.Helper()
	s, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func alerts(t *testing.T) []monitoringv1.Rule {
	t.Helper()
	return shipped(t).Alerts()
}

func TestEveryAlertSaysWhatToDo(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, alert := range alerts(t) {
		if alert.Alert == "" || seen[alert.Alert] {
			t.Errorf("%q has no name or another's", alert.Alert)
		}
		seen[alert.Alert] = true
		if !slices.Contains([]string{"critical", "warning", "info", "none"}, alert.Labels["severity"]) {
			t.Errorf("%s has the severity %q", alert.Alert, alert.Labels["severity"])
		}
		for _, key := range []string{"summary", "description"} {
			if text := alert.Annotations[key]; !strings.HasSuffix(text, ".") {
				t.Errorf("%s: its %s is no sentence: %q", alert.Alert, key, text)
			}
		}
		version := `^https://github\.com/cnpg-i/scale-to-zero/blob/(main|v\d+\.\d+\.\d+(-[a-z0-9.]+)?)/docs/runbooks/`
		if want := regexp.MustCompile(version + counted(alert) + `\.md$`); !want.MatchString(alert.Annotations["runbook_url"]) {
			t.Errorf("%s leads to %q, want %s", alert.Alert, alert.Annotations["runbook_url"], want)
		}
	}
}

// TestRules_keepTheKubernetesCluster checks that no rule combines series of different Kubernetes clusters.
func TestRules_keepTheKubernetesCluster(t *testing.T) {
	t.Parallel()
	s := shipped(t)
	for _, rule := range append(s.Alerts(), s.Records()...) {
		expression, err := parser.ParseExpr(rule.Expr.String())
		if err != nil {
			t.Fatal(err)
		}
		parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
			switch n := node.(type) {
			case *parser.AggregateExpr:
				if !slices.Contains(n.Grouping, kubernetesCluster) {
					t.Errorf("%s%s does not keep the label k8s_cluster: %s", rule.Alert, rule.Record, n)
				}
			case *parser.BinaryExpr:
				if m := n.VectorMatching; m != nil && m.On && len(m.MatchingLabels) != 0 && !slices.Contains(m.MatchingLabels, kubernetesCluster) {
					t.Errorf("%s%s does not match by the label k8s_cluster: %s", rule.Alert, rule.Record, n)
				}
			}
			return nil
		})
	}
}

// counted is the name of the alert that counts those of each cluster, or the alert's own.
func counted(alert monitoringv1.Rule) string {
	if alert.Labels["severity"] == "none" {
		return strings.TrimSuffix(alert.Alert, "Cluster")
	}
	return alert.Alert
}

// TestRules_measureNoDurationOfWhatTakesTurns checks that no alert with a duration aggregates over clusters: the series of such an
// aggregate continues while one cluster follows another.
func TestRules_measureNoDurationOfWhatTakesTurns(t *testing.T) {
	t.Parallel()
	families := available(t)
	for _, alert := range alerts(t) {
		if alert.For != nil && takesTurns(t, alert.Expr.String(), families) {
			t.Errorf("%s has a duration and aggregates over clusters: write an alert for each cluster, and count ALERTS", alert.Alert)
		}
	}
	for expression, want := range map[string]bool{
		"count by (k8s_cluster) (max by (k8s_cluster, namespace, cluster) (cnpg_scale_to_zero_unrouted_services) > 0)": true,
		"sum by (k8s_cluster) (cnpg_scale_to_zero_suspended_schedules) > 0":                                            true,
		"max(cnpg_scale_to_zero_settings_invalid) > 0":                                                                 true,
		"max by (k8s_cluster, namespace, cluster) (cnpg_scale_to_zero_unrouted_services) > 0":                          false,
		"cnpg_scale_to_zero_socket_events_supported == 0":                                                              false,
		"sum by (k8s_cluster, namespace) (cnpg_scale_to_zero_queued_wakes) > 0":                                        false,
	} {
		if got := takesTurns(t, expression, families); got != want {
			t.Errorf("%s: %t, want %t", expression, got, want)
		}
	}
}

// takesTurns reports whether the outermost aggregation of an expression puts together what is exported of each cluster.
func takesTurns(t *testing.T, text string, families map[string]*family) bool {
	t.Helper()
	expression, err := parser.ParseExpr(text)
	if err != nil {
		t.Fatal(err)
	}
	aggregates, ofClusters := false, false
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.AggregateExpr:
			aggregates = true
		case *parser.VectorSelector:
			if f := families[familyOf(families, n.Name)]; f != nil && f.labels["cluster"] != nil {
				ofClusters = true
			}
		}
		return nil
	})
	return aggregates && ofClusters && !slices.Contains(outermost(expression), "cluster")
}

// TestCriticalAlerts_areOneForACause checks that no critical alert fires once for each cluster.
func TestCriticalAlerts_areOneForACause(t *testing.T) {
	t.Parallel()
	for _, alert := range alerts(t) {
		if alert.Labels["severity"] != "critical" {
			continue
		}
		expression, err := parser.ParseExpr(alert.Expr.String())
		if err != nil {
			t.Fatal(err)
		}
		if kept := outermost(expression); slices.Contains(kept, "cluster") || slices.Contains(kept, "namespace") {
			t.Errorf("%s fires once for each of %v", alert.Alert, kept)
		}
	}
}

// outermost are the labels that the outermost aggregation of an expression keeps.
func outermost(expression parser.Expr) []string {
	switch e := expression.(type) {
	case *parser.AggregateExpr:
		return e.Grouping
	case *parser.BinaryExpr:
		return outermost(e.LHS)
	case *parser.ParenExpr:
		return outermost(e.Expr)
	default:
		return nil
	}
}

// promtool is Prometheus' own tool; make unit gets it.
func promtool(t *testing.T) string {
	t.Helper()
	path := os.Getenv("PROMTOOL")
	if path == "" {
		t.Skip("PROMTOOL is not set: it is the path that `go -C e2e run ./cmd/cluster promtool` prints")
	}
	return path
}

func run(t *testing.T, directory, name string, arguments ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, arguments...)
	command.Dir = directory
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%s %s: %v\n%s", filepath.Base(name), strings.Join(arguments, " "), err, out)
	}
}

// extracted writes the rules as Prometheus reads them, beside their tests.
func extracted(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	body, err := yaml.Marshal(shipped(t).Rules.Spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(directory, os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, "rules.yaml"), body, 0o600); err != nil {
		t.Fatal(err)
	}
	return directory
}

// alertTests are promtool's tests of our own alerts.
var alertTests = []string{"alerts.yaml", "alerts-plugin.yaml", "alerts-days.yaml", "alerts-week.yaml", "alerts-turns.yaml"}

func TestAlertsFire(t *testing.T) {
	t.Parallel()
	tool := promtool(t)
	directory := extracted(t)
	run(t, directory, tool, "check", "rules", "--lint-fatal", "rules.yaml")
	run(t, directory, tool, append([]string{"test", "rules", "inhibited.yaml"}, alertTests...)...)
}

// TestTheScrapeConfigurationIsUnderstood has Prometheus read what is made of the shipped monitors.
func TestTheScrapeConfigurationIsUnderstood(t *testing.T) {
	t.Parallel()
	tool := promtool(t)
	directory := extracted(t)
	body, err := Configuration(shipped(t).Monitors, Access{Host: "api.example.org:6443", TokenFile: "token"}, "rules.yaml", "1s", "127.0.0.1:9093")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"prometheus.yaml": body, "token": nil} {
		if err := os.WriteFile(filepath.Join(directory, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, monitor := range shipped(t).Monitors {
		if err := os.WriteFile(filepath.Join(directory, monitor.TargetsFile()), []byte("[]"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run(t, directory, tool, "check", "config", "--lint-fatal", "prometheus.yaml")
}

// TestPagesPassPromtool has Prometheus' own linter read what the programs export.
func TestPagesPassPromtool(t *testing.T) {
	t.Parallel()
	tool := promtool(t)
	for _, pattern := range []string{"sidecar/server/testdata/*.metrics", "plugin/metrics/testdata/*.metrics"} {
		pages, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(pages) == 0 {
			t.Fatalf("no page is %s: %v", pattern, err)
		}
		for _, page := range pages {
			run(t, ".", "sh", "-c", `"$0" check metrics <"$1"`, tool, page)
		}
	}
}

// unitTests are what promtool is given.
type unitTests struct {
	Tests []struct {
		Series []struct {
			Series string `json:"series"`
		} `json:"input_series"`
		Alerts []struct {
			Name     string `json:"alertname"`
			Expected []any  `json:"exp_alerts"`
		} `json:"alert_rule_test"`
	} `json:"tests"`
}

// TestEveryAlertIsTestedBothWays checks that promtool's tests make each alert fire and stay silent, with exported series only.
func TestEveryAlertIsTestedBothWays(t *testing.T) {
	t.Parallel()
	fires, silent, families := map[string]bool{}, map[string]bool{}, available(t)
	name := regexp.MustCompile(`^[a-z0-9_]+`)
	for _, path := range alertTests {
		body, err := os.ReadFile(filepath.Join("testdata", path))
		if err != nil {
			t.Fatal(err)
		}
		var file unitTests
		if err := yaml.Unmarshal(body, &file); err != nil {
			t.Fatal(err)
		}
		for _, test := range file.Tests {
			for _, alert := range test.Alerts {
				fires[alert.Name] = fires[alert.Name] || len(alert.Expected) != 0
				silent[alert.Name] = silent[alert.Name] || len(alert.Expected) == 0
			}
			for _, series := range test.Series {
				if metric := name.FindString(series.Series); families[familyOf(families, metric)] == nil {
					t.Errorf("a test has %s, which nobody exports", metric)
				}
			}
		}
	}
	names := map[string]bool{}
	for _, alert := range alerts(t) {
		name := counted(alert) // the alerts of each cluster fire where the one that counts them does
		if names[name] = true; !fires[name] || !silent[name] {
			t.Errorf("%s: tested to fire: %t, to be silent: %t", name, fires[name], silent[name])
		}
	}
	if len(fires) != len(names) {
		t.Errorf("%d alerts are tested, and there are %d", len(fires), len(names))
	}
}
