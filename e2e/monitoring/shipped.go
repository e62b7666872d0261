package monitoring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
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

// Query is an expression that is asked of Prometheus, with Grafana's variables in it, and where it is.
type Query struct{ Where, Text string }

// Read reads the component of the repository at root. A field that the types do not know is an error.
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
	decoder := json.NewDecoder(bytes.NewReader(files[0]))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s.dashboard); err != nil {
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
