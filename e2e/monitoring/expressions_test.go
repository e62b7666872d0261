package monitoring

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// Flux puts the variables of its own into everything of the form ${...} that it applies.
func TestNothingIsWrittenAsFluxWritesItsVariables(t *testing.T) {
	t.Parallel()
	component := filepath.Join(root, "manifests", "components", "monitoring")
	files, err := os.ReadDir(component)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		body, err := os.ReadFile(filepath.Join(component, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if count := bytes.Count(body, []byte("${")); count != 0 {
			t.Errorf("%s has ${ %d times", file.Name(), count)
		}
	}
}

// quoted are the expressions of the page.
func quoted(t *testing.T) []string {
	t.Helper()
	body, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, line := range regexp.MustCompile(`(?m)^    (.*cnpg_scale_to_zero_.*)$`).FindAllStringSubmatch(string(body), -1) {
		found = append(found, line[1])
	}
	if len(found) == 0 {
		t.Fatal("the page has no expression")
	}
	return found
}

// kubernetesCluster is the label that tells Kubernetes clusters apart where they share a Prometheus.
const kubernetesCluster = "k8s_cluster"

// fromTarget are the labels that Prometheus gives every series that it scrapes from a pod.
var fromTarget = []string{"namespace", "pod", "container", "job", "instance", kubernetesCluster}

// free are labels whose values are not a closed list.
var free = []string{"namespace", "cluster", "pod", "version", "sidecar_image", "le", "alertname"}

// TestExpressions_nameWhatIsExported holds the expressions of the rules and of the page against the golden pages of the
// programs: the metrics, their labels, and the values of the labels that have a closed list of them.
func TestExpressions_nameWhatIsExported(t *testing.T) {
	t.Parallel()
	expressions := map[string]string{}
	for i, text := range quoted(t) {
		expressions[fmt.Sprintf("page %d", i+1)] = text
	}
	for _, rule := range append(shipped(t).Alerts(), shipped(t).Records()...) {
		expressions[rule.Alert+rule.Record] = rule.Expr.String()
	}
	families := available(t)
	for where, text := range expressions {
		for _, fault := range asksForWhatIsExported(where, text, families) {
			t.Error(fault)
		}
	}
}

// asksForWhatIsExported is every way in which an expression asks for what nobody exports.
func asksForWhatIsExported(where, text string, families map[string]*family) (faults []error) {
	expression, err := parser.ParseExpr(text)
	if err != nil {
		return []error{fmt.Errorf("%s: %w", where, err)}
	}
	fault := func(format string, about ...any) {
		faults = append(faults, fmt.Errorf(where+": "+format, about...))
	}
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			f := families[familyOf(families, n.Name)]
			if f == nil {
				fault("nobody exports %s", n.Name)
				return nil
			}
			for _, m := range n.LabelMatchers {
				matches(fault, n.Name, f, m)
			}
		case *parser.AggregateExpr:
			groups(fault, families, n)
		}
		return nil
	})
	return faults
}

// matches holds a matcher against the labels of a metric.
func matches(fault func(format string, about ...any), name string, f *family, m *labels.Matcher) {
	if m.Name == model.MetricNameLabel {
		return
	}
	values := f.labels[m.Name]
	if values == nil && !slices.Contains(fromTarget, m.Name) {
		fault("%s has no label %s", name, m.Name)
	}
	if values == nil || slices.Contains(free, m.Name) {
		return
	}
	for value := range strings.SplitSeq(m.Value, "|") {
		if !values[value] {
			fault("%s has never %s=%q", name, m.Name, value)
		}
	}
}

// groups holds the labels that an aggregation keeps against those of what it aggregates.
func groups(fault func(format string, about ...any), families map[string]*family, n *parser.AggregateExpr) {
	has := slices.Clone(fromTarget)
	parser.Inspect(n.Expr, func(node parser.Node, _ []parser.Node) error {
		if selector, is := node.(*parser.VectorSelector); is {
			if f := families[familyOf(families, selector.Name)]; f != nil {
				has = slices.AppendSeq(has, maps.Keys(f.labels))
			}
		}
		return nil
	})
	for _, label := range n.Grouping {
		if !slices.Contains(has, label) {
			fault("%s is kept by an aggregation of what has no such label", label)
		}
	}
}
