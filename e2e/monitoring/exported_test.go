package monitoring

import (
	"flag"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the page's tables anew")

// root is the repository.
const root = "../.."

// family is a metric as a program exports it: for each of its labels the values that were seen.
type family struct {
	help, kind string
	labels     map[string]map[string]bool
}

var (
	comment = regexp.MustCompile(`^# (HELP|TYPE) (\S+) (.*)$`)
	sample  = regexp.MustCompile(`^([a-z0-9_]+)(?:\{(.*)\})? \S+$`)
	pair    = regexp.MustCompile(`([a-zA-Z_]+)="((?:[^"\\]|\\.)*)"`)
)

// exported reads the golden pages that the tests of a program compare its /metrics with.
func exported(t *testing.T, pattern string) map[string]*family {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil || len(pages) == 0 {
		t.Fatalf("no page is %s: %v", pattern, err)
	}
	families := map[string]*family{}
	for _, page := range pages {
		body, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(body)) {
			read(t, families, strings.TrimSpace(line))
		}
	}
	return families
}

func read(t *testing.T, families map[string]*family, line string) {
	t.Helper()
	if found := comment.FindStringSubmatch(line); found != nil {
		if families[found[2]] == nil {
			families[found[2]] = &family{labels: map[string]map[string]bool{}}
		}
		if found[1] == "HELP" {
			families[found[2]].help = found[3]
		} else {
			families[found[2]].kind = found[3]
		}
		return
	}
	found := sample.FindStringSubmatch(line)
	if found == nil {
		t.Fatalf("the line is not understood: %s", line)
	}
	of := families[familyOf(families, found[1])]
	for _, label := range pair.FindAllStringSubmatch(found[2], -1) {
		if of.labels[label[1]] == nil {
			of.labels[label[1]] = map[string]bool{}
		}
		of.labels[label[1]][label[2]] = true
	}
}

// familyOf is the name of the metric that a series is part of.
func familyOf(families map[string]*family, series string) string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if name, is := strings.CutSuffix(series, suffix); is && families[name] != nil && families[name].kind == "histogram" {
			return name
		}
	}
	return series
}

func sidecarPages(t *testing.T) map[string]*family {
	return exported(t, "sidecar/server/testdata/*.metrics")
}
func pluginPages(t *testing.T) map[string]*family {
	return exported(t, "plugin/metrics/testdata/*.metrics")
}

// foreign are the metrics of others that the dashboard and the rules use, with their labels: CloudNativePG's, controller-runtime's and
// what Prometheus records of alerts.
func foreign(t *testing.T) map[string]*family {
	t.Helper()
	return map[string]*family{
		"cnpg_collector_up": {kind: "gauge", labels: map[string]map[string]bool{"cluster": {}}},
		"controller_runtime_reconcile_errors_total": {kind: "counter", labels: map[string]map[string]bool{
			"controller": controllers(t),
		}},
		"ALERTS": {kind: "gauge", labels: map[string]map[string]bool{"alertname": {}, "alertstate": {"firing": true}}},
	}
}

// controllers are the names of the plugin's.
func controllers(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir(root+"/plugin", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		body, err := os.ReadFile(path)
		for _, match := range regexp.MustCompile(`\.Named\("([a-z-]+)"\)`).FindAllStringSubmatch(string(body), -1) {
			names[match[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// The alert about reconciliations that fail has every controller of the plugin, and no other: the operator's are in its metrics too.
func TestReconcileFailing_hasEveryController(t *testing.T) {
	t.Parallel()
	names := strings.Join(slices.Sorted(maps.Keys(controllers(t))), "|")
	for _, alert := range alerts(t) {
		if alert.Alert == "ScaleToZeroReconcileFailing" && !strings.Contains(alert.Expr.String(), `{controller=~"`+names+`"}`) {
			t.Errorf("the expression is %s, and the controllers are %s", alert.Expr.String(), names)
		}
	}
}

// available is everything that an expression may name. What is recorded is so of each cluster.
func available(t *testing.T) map[string]*family {
	t.Helper()
	all := foreign(t)
	for _, program := range []map[string]*family{sidecarPages(t), pluginPages(t)} {
		for name, f := range program {
			if all[name] != nil {
				t.Errorf("%s is exported by both programs", name)
			}
			all[name] = f
		}
	}
	for _, rule := range shipped(t).Records() {
		all[rule.Record] = &family{kind: "gauge", labels: map[string]map[string]bool{"namespace": {}, "cluster": {}}}
	}
	return all
}

func labelsOf(f *family) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(f.labels)), func(label string) bool { return label == "le" })
}
