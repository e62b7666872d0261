// Package docs holds the documentation: its tests hold the pages against the code. With -update they write the tables that
// come from it.
package docs

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of the pages anew")

// root is the repository.
const root = ".."

// page is a Markdown file.
type page struct {
	// path is relative to the repository.
	path, text string
}

// pages are all Markdown files of the repository.
func pages(t *testing.T) []page {
	t.Helper()
	var found []page
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "build" && filepath.Dir(path) == root || entry.Name() == ".git" || entry.Name() == "node_modules"):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		found = append(found, page{filepath.ToSlash(relative), string(body)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 20 {
		t.Fatalf("only %d pages were found", len(found))
	}
	return found
}

// block is a fenced block of a page.
type block struct{ language, text string }

var fence = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// blocks are the fenced blocks of a page, and prose is what is left without them.
func (p page) blocks() (found []block, prose string) {
	for _, match := range fence.FindAllStringSubmatch(p.text, -1) {
		found = append(found, block{match[1], match[2]})
	}
	return found, fence.ReplaceAllString(p.text, "")
}

var (
	span     = regexp.MustCompile("`([^`\n]+)`")
	indented = regexp.MustCompile(`(?m)^ {4,}(\S.*)$`)
)

// code is everything on a page that a reader may type: blocks, indented lines and spans, one a line.
func (p page) code() []string {
	blocks, prose := p.blocks()
	var lines []string
	for _, b := range blocks {
		lines = append(lines, strings.Split(strings.ReplaceAll(b.text, "\\\n", " "), "\n")...)
	}
	for _, pattern := range []*regexp.Regexp{indented, span} {
		for _, match := range pattern.FindAllStringSubmatch(prose, -1) {
			lines = append(lines, match[1])
		}
	}
	return lines
}

// table holds the table of that name on a page against what the code says; with -update it writes it.
func table(t *testing.T, file, name, want string) {
	t.Helper()
	path := filepath.Join(root, filepath.FromSlash(file))
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- table: "+name+" -->\n", "<!-- end -->"
	before, rest, ok := strings.Cut(string(body), begin)
	got, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no table %q", file, name)
	}
	switch {
	case got == want:
	case *update:
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the table %q of %s is out of date; go test ./docs -update writes it:\n%s", name, file, want)
	}
}
