// Package monitoring reads what manifests/components/monitoring ships. Its tests compare the dashboard, the alerts and
// docs/reference/metrics.md with what the two programs export.
package monitoring

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Shipped is what the monitoring component has, as it is committed.
type Shipped struct {
	// Rules are in the Prometheus operator's own type, Monitors are read from it.
	Rules    monitoringv1.PrometheusRule
	Monitors []Monitor

	dashboard dashboard
}

// dashboard is the part of the dashboard's JSON that Prometheus is asked for.
type dashboard struct {
	Panels []struct {
		Title   string `json:"title"`
		Targets []struct {
			RefID string `json:"refId"`
			Expr  string `json:"expr"`
		} `json:"targets"`
	} `json:"panels"`
	Templating struct {
		List []struct {
			Name       string `json:"name"`
			Type       string `json:"type"`
			Definition string `json:"definition"`
			Current    struct {
				Value any `json:"value"`
			} `json:"current"`
		} `json:"list"`
	} `json:"templating"`
}

// Query is an expression that is asked of Prometheus, with Grafana's variables in it, and where it is.
type Query struct{ Where, Text string }

// Read reads the component of the repository at root.
func Read(root string) (Shipped, error) {
	var s Shipped
	component := os.DirFS(filepath.Join(root, "manifests", "components", "monitoring"))
	var files [3][]byte
	for i, name := range []string{"dashboard.json", "rules.yaml", "monitors.yaml"} {
		body, err := fs.ReadFile(component, name)
		if err != nil {
			return s, fmt.Errorf("read the monitoring component: %w", err)
		}
		files[i] = body
	}
	if err := json.Unmarshal(files[0], &s.dashboard); err != nil {
		return s, fmt.Errorf("decode the dashboard: %w", err)
	}
	if err := yaml.UnmarshalStrict(files[1], &s.Rules); err != nil {
		return s, fmt.Errorf("decode the rules: %w", err)
	}
	for _, document := range strings.Split(string(files[2]), "\n---\n") {
		monitor, err := readMonitor([]byte(document))
		if err != nil {
			return s, err
		}
		s.Monitors = append(s.Monitors, monitor)
	}
	return s, nil
}

// readMonitor reads a PodMonitor or a ServiceMonitor.
func readMonitor(document []byte) (Monitor, error) {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return Monitor{}, fmt.Errorf("decode the monitors: %w", err)
	}
	if kind.Kind == monitoringv1.ServiceMonitorsKind {
		var monitor monitoringv1.ServiceMonitor
		if err := yaml.UnmarshalStrict(document, &monitor); err != nil {
			return Monitor{}, fmt.Errorf("decode a ServiceMonitor: %w", err)
		}
		return OfServices(&monitor)
	}
	var monitor monitoringv1.PodMonitor
	if err := yaml.UnmarshalStrict(document, &monitor); err != nil {
		return Monitor{}, fmt.Errorf("decode a PodMonitor: %w", err)
	}
	return OfPods(&monitor)
}

// labelValues is how Grafana asks for the values of a label.
var labelValues = regexp.MustCompile(`^label_values\((.*), ([a-z0-9_]+)\)$`)

// Queries are what the dashboard asks, of its panels and for its variables.
func (s Shipped) Queries() ([]Query, error) {
	var found []Query
	for _, p := range s.dashboard.Panels {
		for _, query := range p.Targets {
			found = append(found, Query{"panel " + p.Title + " " + query.RefID, query.Expr})
		}
	}
	for _, v := range s.dashboard.Templating.List {
		if v.Type != "query" {
			continue
		}
		asks := labelValues.FindStringSubmatch(v.Definition)
		if asks == nil {
			return nil, fmt.Errorf("the variable %s asks %q, want label_values(SERIES, LABEL)", v.Name, v.Definition)
		}
		found = append(found, Query{"variable " + v.Name, "count by (" + asks[2] + ") (" + asks[1] + ")"})
	}
	return found, nil
}

// Fill puts the values of variables into an expression, as Grafana does. A variable that is not given has its initial value,
// and matches everything if Prometheus is asked for its values.
func (s Shipped) Fill(expression string, values map[string]string) string {
	all := map[string]string{"__range": "1d", "__rate_interval": "5m"}
	for _, v := range s.dashboard.Templating.List {
		if v.Type == "query" {
			all[v.Name] = ".*"
		} else if initial, ok := v.Current.Value.(string); ok {
			all[v.Name] = initial
		}
	}
	maps.Copy(all, values)
	// The longest first, because the name of one may begin with another's.
	names := slices.SortedFunc(maps.Keys(all), func(a, b string) int { return len(b) - len(a) })
	pairs := make([]string, 0, 2*len(names))
	for _, name := range names {
		pairs = append(pairs, "$"+name, all[name])
	}
	return strings.NewReplacer(pairs...).Replace(expression)
}

// Alerts are the alerts of all groups.
func (s Shipped) Alerts() []monitoringv1.Rule {
	return s.rules(func(r monitoringv1.Rule) bool { return r.Record == "" })
}

// Records are the rules that record a series.
func (s Shipped) Records() []monitoringv1.Rule {
	return s.rules(func(r monitoringv1.Rule) bool { return r.Record != "" })
}

func (s Shipped) rules(wanted func(monitoringv1.Rule) bool) []monitoringv1.Rule {
	var all []monitoringv1.Rule
	for _, group := range s.Rules.Spec.Groups {
		for _, rule := range group.Rules {
			if wanted(rule) {
				all = append(all, rule)
			}
		}
	}
	return all
}
