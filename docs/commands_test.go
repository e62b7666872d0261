package docs

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/cnpg-i/scale-to-zero/plugin/command"
)

var (
	makes  = regexp.MustCompile(`(?:^|[\s(&;])make((?: +[a-z][a-z0-9-]*)+)`)
	target = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	// calls are the command and what follows it, up to the next command or comment.
	calls   = regexp.MustCompile(`kubectl scale_to_zero +([^|&#;(]+)`)
	subname = regexp.MustCompile(`^[a-z][a-z-]*$`)
	source  = regexp.MustCompile(`go -C e2e (?:run|test) (?:-\S+ )*\./([a-z/]+)`)
)

func TestMakeTargets_exist(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, rule := range regexp.MustCompile(`(?m)^([a-z][a-z0-9 -]*):(?:[^=]|$)`).FindAllStringSubmatch(string(makefile), -1) {
		for name := range strings.FieldsSeq(rule[1]) {
			known[name] = true
		}
	}
	seen := 0
	for _, p := range pages(t) {
		for _, line := range p.code() {
			for _, call := range makes.FindAllStringSubmatch(line, -1) {
				for word := range strings.FieldsSeq(call[1]) {
					if !target.MatchString(word) { // a variable
						continue
					}
					seen++
					if !known[word] {
						t.Errorf("%s: there is no target %q: %s", p.path, word, line)
					}
				}
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d targets were found on the pages", seen)
	}
}

func TestSources_exist(t *testing.T) {
	t.Parallel()
	for _, p := range pages(t) {
		for _, line := range p.code() {
			for _, match := range source.FindAllStringSubmatch(line, -1) {
				if _, err := os.Stat(filepath.Join(root, "e2e", match[1])); err != nil {
					t.Errorf("%s: %s: %v", p.path, line, err)
				}
			}
		}
	}
}

// The command line knows every command and flag that a page names.
func TestCommandLine_exists(t *testing.T) {
	t.Parallel()
	help := map[string]string{}
	seen := 0
	for _, p := range pages(t) {
		for _, line := range p.code() {
			for _, call := range calls.FindAllStringSubmatch(line, -1) {
				words := strings.Fields(call[1])
				if !subname.MatchString(words[0]) {
					continue
				}
				seen++
				name := words[0]
				if help[name] == "" {
					help[name] = helpOf(t, name)
				}
				for _, word := range words[1:] {
					flag, _, _ := strings.Cut(strings.Trim(word, "[]"), "=")
					if strings.HasPrefix(flag, "-") && !regexp.MustCompile(`(?m)(^|[\s,])`+regexp.QuoteMeta(flag)+`([\s,=]|$)`).MatchString(help[name]) {
						t.Errorf("%s: %q has no flag %s", p.path, name, flag)
					}
				}
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d calls were found on the pages", seen)
	}
}

func helpOf(t *testing.T, name string) string {
	t.Helper()
	var out, errors bytes.Buffer
	code := command.Run(t.Context(), []string{name, "--help"}, command.Streams{Out: &out, Err: &errors, Getenv: func(string) string { return "" }}, "development")
	if code != 0 || !strings.Contains(out.String(), "scale_to_zero "+name) {
		t.Errorf("there is no command %q: %s", name, errors.String())
	}
	return out.String() + "\n" // not asked twice
}

// The chart has every value that a page sets.
func TestChartValues_exist(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile(filepath.Join(root, "manifests/chart/values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(body, &values); err != nil {
		t.Fatal(err)
	}
	for _, p := range pages(t) {
		for _, line := range p.code() {
			for _, set := range regexp.MustCompile(`--set ([A-Za-z.]+)=`).FindAllStringSubmatch(line, -1) {
				var at any = values
				for name := range strings.SplitSeq(set[1], ".") {
					inner, _ := at.(map[string]any)
					at = inner[name]
				}
				if at == nil {
					t.Errorf("%s: the chart has no value %s", p.path, set[1])
				}
			}
		}
	}
}
