package docs

import (
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// TestYAML_isUnderstood reads every block of YAML, and the examples, with the types of what they are.
func TestYAML_isUnderstood(t *testing.T) {
	t.Parallel()
	texts := map[string][]string{}
	for _, p := range pages(t) {
		blocks, _ := p.blocks()
		for _, b := range blocks {
			if b.language == "yaml" {
				texts[p.path] = append(texts[p.path], b.text)
			}
		}
	}
	examples, err := filepath.Glob(filepath.Join(root, "manifests/examples/*.yaml"))
	if err != nil || len(examples) == 0 {
		t.Fatalf("no example was found: %v", err)
	}
	for _, path := range examples {
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts[path] = append(texts[path], string(body))
	}
	for where, blocks := range texts {
		for _, text := range blocks {
			for document := range strings.SplitSeq(text, "\n---\n") {
				if err := understand(t, []byte(document)); err != nil {
					t.Errorf("%s: %v\n%s", where, err, document)
				}
			}
		}
	}
}

// understand decodes a document strictly. A fragment of no kind is taken for a Cluster's.
func understand(t *testing.T, document []byte) error {
	t.Helper()
	var head struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal(document, &head); err != nil {
		return err
	}
	switch {
	case head.Kind == "Kustomization", head.Kind == "Component": // e2e/install renders them
		return nil
	case head.Kind == "Cluster" && head.APIVersion == "postgresql.cnpg.io/v1", head.Kind == "":
		var cluster cnpgv1.Cluster
		if err := yaml.UnmarshalStrict(document, &cluster); err != nil {
			return err
		}
		_, problems := idle.ParsePolicy(cluster.Annotations, time.Now())
		for _, problem := range problems {
			t.Error(problem)
		}
		return nil
	case head.Kind == "ScheduledBackup":
		return yaml.UnmarshalStrict(document, &cnpgv1.ScheduledBackup{})
	case head.Kind == "Pooler":
		return yaml.UnmarshalStrict(document, &cnpgv1.Pooler{})
	case head.APIVersion == "", strings.HasPrefix(head.APIVersion, "argoproj.io/"): // whose types no module of ours has
		return nil
	default:
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(document, nil, nil)
		if err != nil {
			return err
		}
		return yaml.UnmarshalStrict(document, object)
	}
}

// The shell understands every block that is for it.
func TestShell_isUnderstood(t *testing.T) {
	t.Parallel()
	for _, p := range pages(t) {
		blocks, _ := p.blocks()
		for _, b := range blocks {
			if b.language != "sh" {
				continue
			}
			shell := exec.CommandContext(t.Context(), "bash", "-n")
			shell.Stdin = strings.NewReader(b.text)
			if out, err := shell.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s\n%s", p.path, err, out, b.text)
			}
		}
	}
}

// The list of commands has the first line of each block, with the test that runs it or the reason why none does.
func TestCommands_areListed(t *testing.T) {
	t.Parallel()
	const list = "docs/contributing/commands.md"
	body, err := os.ReadFile(filepath.Join(root, list))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]int{}
	for _, row := range regexp.MustCompile("(?m)^\\| \\[.*\\]\\((.*)\\) \\| `(.*)` \\| ((?:`Test|not run: |the set-up ).*) \\|$").FindAllStringSubmatch(string(body), -1) {
		listed[path.Join(path.Dir(list), row[1])+": "+strings.ReplaceAll(row[2], `\|`, "|")]++
	}
	for _, p := range pages(t) {
		if p.path != "README.md" && !strings.HasPrefix(p.path, "docs/") {
			continue
		}
		blocks, prose := p.blocks()
		texts := regexp.MustCompile(`(?m)(?:^ {4,}\S.*\n)+`).FindAllString(prose, -1)
		for _, b := range blocks {
			if b.language == "sh" {
				texts = append(texts, b.text)
			}
		}
		for _, text := range texts {
			first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
			first = strings.TrimRight(regexp.MustCompile(`\s+# .*`).ReplaceAllString(first, ""), ` \`)
			listed[p.path+": "+first]--
		}
	}
	for command, count := range listed {
		if count != 0 {
			t.Errorf("%s has %+d too many of %s", list, count, command)
		}
	}
}

var key = regexp.MustCompile(regexp.QuoteMeta(contract.Prefix) + `[a-z-]*[a-z]`)

// Every annotation that a page names exists.
func TestAnnotations_exist(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, a := range annotations(t) {
		known[a.key] = true
	}
	for _, p := range pages(t) {
		for _, name := range key.FindAllString(p.text, -1) {
			if !known[name] {
				t.Errorf("%s names the annotation %s, which does not exist", p.path, name)
			}
		}
	}
}

// Every series and every alert that a page names exists.
func TestSeriesAndAlerts_exist(t *testing.T) {
	t.Parallel()
	var exported strings.Builder
	for _, pattern := range []string{"plugin/metrics/testdata/*.metrics", "sidecar/server/testdata/*.metrics", "manifests/components/monitoring/rules.yaml"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("no file is %s: %v", pattern, err)
		}
		for _, path := range paths {
			body, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			exported.Write(body)
		}
	}
	for _, p := range pages(t) {
		for _, name := range regexp.MustCompile(`\bcnpg_scale_to_zero_[a-z_]*[a-z]|\bScaleToZero[A-Z][A-Za-z]+`).FindAllString(p.text, -1) {
			if !regexp.MustCompile(`\b` + name + `\b`).MatchString(exported.String()) {
				t.Errorf("%s names %s, which does not exist", p.path, name)
			}
		}
	}
}

// ranges are addresses with the length of a prefix.
var ranges = regexp.MustCompile(`[0-9A-Fa-f:.]+/[0-9]{1,3}\b`)

// An example that a reader copies must not ignore or admit the pods of a cluster: what we name are ranges for documentation.
func TestRanges_areNoPodNetworks(t *testing.T) {
	t.Parallel()
	shared := netip.MustParsePrefix("100.64.0.0/10")
	for _, directory := range []string{"README.md", "docs", "manifests", "plugin", "sidecar"} {
		err := filepath.WalkDir(filepath.Join(root, directory), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(filepath.Dir(path), "test") || strings.HasSuffix(filepath.Dir(path), "testdata") ||
				!slices.Contains([]string{".md", ".yaml", ".go", ".tmpl", ".txt"}, filepath.Ext(path)) {
				return err
			}
			body, err := os.ReadFile(path)
			for _, text := range ranges.FindAllString(string(body), -1) {
				prefix, err := netip.ParsePrefix(text)
				if err == nil && (prefix.Addr().IsPrivate() || shared.Contains(prefix.Addr())) {
					t.Errorf("%s names %s, which may be a network of pods; take one of RFC 5737 or RFC 3849", path, text)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
