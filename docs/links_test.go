package docs

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// ours is how the outside names a file of this repository.
const ours = "https://github.com/cnpg-i/scale-to-zero/blob/main/"

var (
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#{1,6} +(.+?)\s*$`)
	linked    = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	forbidden = regexp.MustCompile(`[^\p{L}\p{N}\p{M} _-]`)
	named     = regexp.MustCompile(`^(?:docs|e2e|manifests|plugin|sidecar|sql)/[A-Za-z0-9._/-]+$`)
	absolute  = regexp.MustCompile(`https://github\.com/cnpg-i/scale-to-zero/blob/[^/\s]+/([A-Za-z0-9._/-]+)(?:#([a-z0-9_-]+))?`) // of any version
)

// anchors are what GitHub makes of a page's headings.
func anchors(text string) map[string]bool {
	found, seen := map[string]bool{}, map[string]int{}
	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		plain := linked.ReplaceAllString(match[1], "$1")
		anchor := strings.ReplaceAll(forbidden.ReplaceAllString(strings.ToLower(plain), ""), " ", "-")
		if n := seen[anchor]; n > 0 {
			found[anchor+"-"+strconv.Itoa(n)] = true
		}
		seen[anchor]++
		found[anchor] = true
	}
	return found
}

func TestLinks_leadSomewhere(t *testing.T) {
	t.Parallel()
	all := pages(t)
	headings := map[string]map[string]bool{}
	for _, p := range all {
		headings[p.path] = anchors(p.text)
	}
	check := func(from, file, anchor string) {
		if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(file))); err != nil {
			t.Errorf("%s leads to %s, which does not exist", from, file)
		} else if anchor != "" && !headings[file][anchor] {
			t.Errorf("%s leads to %s#%s, and there is no such heading", from, file, anchor)
		}
	}
	for _, p := range all {
		_, prose := p.blocks()
		for _, match := range link.FindAllStringSubmatch(span.ReplaceAllString(prose, "`"), -1) {
			target, isOurs := strings.CutPrefix(match[1], ours)
			if !isOurs && strings.Contains(target, "://") {
				continue
			}
			file, anchor, _ := strings.Cut(target, "#")
			switch {
			case file == "":
				file = p.path
			case !isOurs:
				file = path.Join(path.Dir(p.path), file)
			}
			check(p.path, file, anchor)
		}
		for _, match := range span.FindAllStringSubmatch(prose, -1) {
			if named.MatchString(match[1]) {
				check(p.path, strings.TrimSuffix(match[1], "/"), "")
			}
		}
	}
	rules, err := os.ReadFile(filepath.Join(root, "manifests/components/monitoring/rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range absolute.FindAllStringSubmatch(string(rules), -1) {
		check("rules.yaml", url[1], url[2])
	}
	findings, err := os.ReadFile(filepath.Join(root, "plugin/command/findings.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile(`"([a-z]+/[A-Za-z-]+\.md)#?([a-z0-9_-]*)"`).FindAllStringSubmatch(string(findings), -1) {
		check("findings.go", "docs/"+match[1], match[2])
	}
}

// Every page is on the list of pages, and each runbook on that of the alerts.
func TestIndex_isComplete(t *testing.T) {
	t.Parallel()
	for _, p := range pages(t) {
		index := "docs"
		if path.Dir(p.path) == "docs/runbooks" && path.Base(p.path) != "README.md" {
			index = "docs/runbooks"
		}
		name, ok := strings.CutPrefix(p.path, index+"/")
		if !ok || name == "README.md" {
			continue
		}
		body, err := os.ReadFile(filepath.Join(root, index, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(body), "]("+name+")") {
			t.Errorf("%s/README.md does not list %s", index, name)
		}
	}
}

// The first page is one that is read.
func TestReadme_isShort(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(body), "\n"); lines > 120 {
		t.Errorf("README.md has %d lines, at most 120 are wanted", lines)
	}
}
