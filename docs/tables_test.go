package docs

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/config"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

const (
	configuration   = "docs/reference/configuration.md"
	troubleshooting = "docs/guides/troubleshooting.md"
	events          = "docs/reference/events.md"
	commandLine     = "docs/reference/command-line.md"
)

// annotation is what package contract says of one: its comment, with the constants that it names as their values.
type annotation struct {
	key, meaning, otherwise string
	ofService               bool
}

var (
	reference = regexp.MustCompile(`\[([A-Z][A-Za-z]+)\]`)
	otherwise = regexp.MustCompile(`(?s)^(.*?)\s*Default: (.*)\.$`)
)

// annotations are those of the contract, in its order.
func annotations(t *testing.T) []annotation {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "sidecar/contract/annotations.go"), nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	values, comments := map[string]string{}, map[string]string{}
	var order []string
	var alone *ast.CommentGroup // the comment of a declaration of one constant
	ast.Inspect(file, func(n ast.Node) bool {
		if declaration, ok := n.(*ast.GenDecl); ok {
			alone = declaration.Doc
		}
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		name, doc := spec.Names[0].Name, cmp.Or(spec.Doc, alone)
		switch value := spec.Values[0].(type) {
		case *ast.BasicLit:
			values[name], _ = strconv.Unquote(value.Value)
		case *ast.BinaryExpr:
			if right, ok := value.Y.(*ast.BasicLit); ok && right.Kind == token.STRING {
				suffix, _ := strconv.Unquote(right.Value)
				values[name] = contract.Prefix + suffix
				order = append(order, name)
			}
		}
		comments[name] = strings.Join(strings.Fields(doc.Text()), " ")
		return true
	})
	var found []annotation
	for _, name := range order {
		a := annotation{key: values[name], meaning: strings.TrimPrefix(comments[name], name)}
		a.meaning, a.ofService = strings.CutPrefix(a.meaning, ", on a Service,")
		a.meaning = strings.TrimSpace(a.meaning)
		if parts := otherwise.FindStringSubmatch(a.meaning); parts != nil {
			a.meaning, a.otherwise = parts[1], parts[2]
		}
		for _, text := range []*string{&a.meaning, &a.otherwise} {
			*text = reference.ReplaceAllStringFunc(*text, func(name string) string {
				return "`" + cmp.Or(values[strings.Trim(name, "[]")], name) + "`"
			})
		}
		a.meaning = strings.TrimPrefix(a.meaning, "is ")
		a.meaning = strings.ToUpper(a.meaning[:1]) + a.meaning[1:]
		found = append(found, a)
	}
	return found
}

// settable are the annotations that the policy knows, by what it says of one that it does not know.
func settable(t *testing.T) []string {
	t.Helper()
	_, problems := idle.ParsePolicy(map[string]string{contract.Prefix + "unheard-of": ""}, time.Now())
	_, list, ok := strings.Cut(problems[0].Allowed, "known are ")
	if !ok {
		t.Fatalf("the policy does not say what it knows: %s", problems[0].Allowed)
	}
	names := regexp.MustCompile(`[a-z-]+`).FindAllString(strings.ReplaceAll(list, " and ", " "), -1)
	for i := range names {
		names[i] = contract.Prefix + names[i]
	}
	return names
}

func TestAnnotations_areListed(t *testing.T) { // it may write a page that others read
	known := settable(t)
	people, parts := "| annotation | meaning | default |\n|---|---|---|\n", "| annotation | meaning |\n|---|---|\n"
	listed, services := 0, ""
	for _, a := range annotations(t) {
		if a.ofService {
			services += fmt.Sprintf("| `%s` | %s | %s |\n", a.key, a.meaning, a.otherwise)
			continue
		}
		if !slices.Contains(known, a.key) {
			parts += fmt.Sprintf("| `%s` | %s |\n", a.key, a.meaning)
			continue
		}
		listed++
		if a.otherwise == "" {
			t.Errorf("the comment of %s does not end with its default, such as \"Default: none.\"", a.key)
		}
		people += fmt.Sprintf("| `%s` | %s | %s |\n", a.key, a.meaning, a.otherwise)
	}
	if listed != len(known) {
		t.Errorf("the contract has %d of the policy's annotations %q", listed, known)
	}
	table(t, configuration, "annotations", people)
	table(t, configuration, "state", parts)
	if services != "" {
		table(t, configuration, "services", "| annotation of a Service | meaning | default |\n|---|---|---|\n"+services)
	}
}

func TestSettings_areListed(t *testing.T) { // it may write a page that others read
	var help bytes.Buffer
	_, _ = config.Parse([]string{"--help"}, func(string) (string, bool) { return "", false }, &help)
	out := "| setting | meaning | default |\n|---|---|---|\n"
	rows := regexp.MustCompile(`(?m)^  -\S+ string\n    \t(.*) \(([A-Z_]+)\)(?: \(default "(.*)"\))?$`).FindAllStringSubmatch(help.String(), -1)
	if len(rows) < 20 {
		t.Fatalf("only %d settings were found:\n%s", len(rows), help.String())
	}
	for _, row := range rows {
		initial := ""
		if row[3] != "" {
			initial = "`" + row[3] + "`"
		}
		out += fmt.Sprintf("| `%s` | %s | %s |\n", row[2], row[1], initial)
	}
	table(t, configuration, "settings", out)
}

func TestReasons_areListed(t *testing.T) { // it may write a page that others read
	out := "| reason | meaning |\n|---|---|\n"
	for _, reason := range idle.Reasons() {
		out += fmt.Sprintf("| [`%s`](#%s) | %s |\n", reason, reason, reason.Description())
	}
	table(t, troubleshooting, "reasons", out)
}

// Every reason has a section that says what to do, and nothing else has one.
func TestReasons_haveSections(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile(filepath.Join(root, troubleshooting))
	if err != nil {
		t.Fatal(err)
	}
	sections := map[idle.Reason]string{}
	for _, section := range regexp.MustCompile("(?m)^### `(.*)`\n\n(.*)").FindAllStringSubmatch(string(body), -1) {
		sections[idle.Reason(section[1])] = section[2]
	}
	for _, reason := range idle.Reasons() {
		if sections[reason] == "" {
			t.Errorf("there is no section %s", reason)
		}
		delete(sections, reason)
	}
	for reason := range sections {
		t.Errorf("%s is no reason", reason)
	}
}

// written are the lines of the code that write an Event, or name the reason of one.
var written = regexp.MustCompile(`(?:\bEventf?\(|\.write\(|\.warn\(|\bReason: |\breason[A-Z]\w* *= ).*?"([A-Z][a-z]+[A-Za-z]*)"`)

// warned are the lines of the code that write an Event as a warning.
var warned = regexp.MustCompile(`(?:(?:EventWarning|EventTypeWarning|Warning: true), (?:Reason: )?|\.warn\()"([A-Z][A-Za-z]*)"`)

// The list of Events has what the code writes.
func TestEvents_areListed(t *testing.T) {
	t.Parallel()
	reasons, warnings := map[string]bool{}, map[string]bool{}
	for _, directory := range []string{"plugin", "sidecar"} {
		err := filepath.WalkDir(filepath.Join(root, directory), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			body, err := os.ReadFile(path)
			for _, match := range written.FindAllStringSubmatch(string(body), -1) {
				reasons[match[1]] = true
			}
			for _, match := range warned.FindAllStringSubmatch(string(body), -1) {
				warnings[match[1]] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	body, err := os.ReadFile(filepath.Join(root, events))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\| ").FindAllStringSubmatch(string(body), -1) {
		listed[row[1]] = true
		if !reasons[row[1]] {
			t.Errorf("%s lists the Event %s, which nothing writes", events, row[1])
		}
	}
	for reason := range reasons {
		if !listed[reason] {
			t.Errorf("%s does not list the Event %s", events, reason)
		}
		if marked := strings.Contains(string(body), "| `"+reason+"` | (warning) "); marked != warnings[reason] {
			t.Errorf("%s marks the Event %s as a warning: %t, and the code writes it as one: %t", events, reason, marked, warnings[reason])
		}
	}
}

// What explain prints is shown as one of its golden files has it.
func TestExplanation_isShown(t *testing.T) { // it may write a page that others read
	body, err := os.ReadFile(filepath.Join(root, "plugin/command/testdata/explain-busy.txt"))
	if err != nil {
		t.Fatal(err)
	}
	shown, _, _ := strings.Cut(string(body), "\n= 0")
	table(t, commandLine, "explain", "```\n"+shown+"\n```\n")
}
