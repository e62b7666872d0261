package monitoring

import (
	"bytes"
	"fmt"
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

const dashboardFile = root + "/manifests/components/monitoring/dashboard.json"

func TestTheDashboardIsWhatTheGeneratorWrites(t *testing.T) {
	t.Parallel()
	want, err := Dashboard()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, got) {
		t.Errorf("%s is another one; make dashboard writes it", filepath.Base(dashboardFile))
	}
}

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

func TestTheDashboardHoldsTogether(t *testing.T) {
	t.Parallel()
	d := shipped(t).dashboard
	var names []string
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
	}
	if want := []string{"datasource", "k8sCluster", "operatorNamespace", "namespace", "cluster", "detail", "top", "cpuPrice", "memoryPrice"}; !slices.Equal(names, want) {
		t.Errorf("its variables are %v, want %v", names, want)
	}
	ids, titles, taken := map[int]bool{}, map[string]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || titles[p.Title] {
			t.Errorf("%q: its id %d or title is another's too", p.Title, p.ID)
		}
		ids[p.ID], titles[p.Title] = true, true
		if p.Type != "row" && (p.Description == "" || len(p.Targets) == 0) {
			t.Errorf("%q has no description or asks for nothing", p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= columns {
					t.Fatalf("%q lies over %q or outside", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}

// expressions are all that are asked of Prometheus, by where they are.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	queries, err := shipped(t).Queries()
	if err != nil {
		t.Fatal(err)
	}
	for _, query := range queries {
		found[query.Where] = query.Text
	}
	for i, text := range quoted(t) {
		found[fmt.Sprintf("page %d", i+1)] = text
	}
	for _, rule := range alerts(t) {
		found["alert "+rule.Alert] = rule.Expr.String()
	}
	for _, rule := range shipped(t).Records() {
		found["record "+rule.Record] = rule.Expr.String()
	}
	return found
}

// quoted are the expressions of the page.
func quoted(t *testing.T) []string {
	t.Helper()
	body, err := os.ReadFile(page)
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
var free = []string{"namespace", "cluster", "pod", "version", "sidecar_image", "le"}

// TestExpressionsNameWhatIsExported holds every expression against the golden pages of the programs: the metrics, their labels,
// and the values of the labels that have a closed list of them.
func TestExpressionsNameWhatIsExported(t *testing.T) {
	t.Parallel()
	families := available(t)
	asked := map[string]bool{}
	for where, text := range expressions(t) {
		expression, err := parser.ParseExpr(Fill(text, nil))
		if err != nil {
			t.Errorf("%s: %v", where, err)
			continue
		}
		parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
			switch n := node.(type) {
			case *parser.VectorSelector:
				name := familyOf(families, n.Name)
				asked[name] = true
				if families[name] == nil {
					t.Errorf("%s: nobody exports %s", where, n.Name)
					return nil
				}
				for _, m := range n.LabelMatchers {
					matches(t, where, name, families[name], m)
				}
			case *parser.AggregateExpr:
				groups(t, where, families, n)
			}
			return nil
		})
	}
	for name := range foreign() {
		if !asked[name] {
			t.Errorf("%s is listed and not used", name)
		}
	}
}

// matches holds a matcher against the labels of a metric.
func matches(t *testing.T, where, name string, f *family, m *labels.Matcher) {
	t.Helper()
	if m.Name == model.MetricNameLabel {
		return
	}
	values := f.labels[m.Name]
	if values == nil && !slices.Contains(fromTarget, m.Name) {
		t.Errorf("%s: %s has no label %s", where, name, m.Name)
	}
	if values == nil || slices.Contains(free, m.Name) {
		return
	}
	for value := range strings.SplitSeq(m.Value, "|") {
		if !values[value] {
			t.Errorf("%s: %s has never %s=%q", where, name, m.Name, value)
		}
	}
}

// groups holds the labels that an aggregation keeps against those of what it aggregates.
func groups(t *testing.T, where string, families map[string]*family, n *parser.AggregateExpr) {
	t.Helper()
	has := slices.Clone(fromTarget)
	parser.Inspect(n.Expr, func(node parser.Node, _ []parser.Node) error {
		if selector, is := node.(*parser.VectorSelector); is {
			if f := families[familyOf(families, selector.Name)]; f != nil {
				for label := range f.labels {
					has = append(has, label)
				}
			}
		}
		return nil
	})
	for _, label := range n.Grouping {
		if !slices.Contains(has, label) {
			t.Errorf("%s: %s is kept by an aggregation of what has no such label", where, label)
		}
	}
}
