package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The page has every text with which the gateway refuses a client, and every reason of the metric.
func TestRefusals_areListed(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("reference/client-errors.md")
	if err != nil {
		t.Fatal(err)
	}
	reasons, err := os.ReadFile(filepath.Join(root, "plugin/wake/gateway/observer.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range regexp.MustCompile(`RefusedReason = "([a-z_]+)"`).FindAllStringSubmatch(string(reasons), -1) {
		if !strings.Contains(string(page), "`"+reason[1]+"`") {
			t.Errorf("the page lacks the reason %s", reason[1])
		}
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "plugin/wake/gateway/refuse.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	ast.Inspect(file, func(node ast.Node) bool {
		function, is := node.(*ast.FuncDecl)
		if !is || function.Name.Name != "explain" {
			return true
		}
		ast.Inspect(function, func(node ast.Node) bool {
			literal, is := node.(*ast.BasicLit)
			if !is {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			for part := range strings.SplitSeq(text, "%") { // a format: what follows the verb is text again
				part = strings.TrimLeft(part, "sq")
				if part = strings.TrimSpace(part); strings.Contains(part, " ") && !strings.HasPrefix(part, "is asleep") {
					seen++
					if !strings.Contains(string(page), part) {
						t.Errorf("the page lacks %q", part)
					}
				}
			}
			return true
		})
		return false
	})
	if seen < 15 {
		t.Errorf("only %d texts were found", seen)
	}
}
