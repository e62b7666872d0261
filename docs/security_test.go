package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The page on security says for what the sidecar connects as the superuser.
func TestSecurity_saysWhatTheSuperuserIsFor(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs/explanation/security.md"))
	if err != nil {
		t.Fatal(err)
	}
	purposes := map[string]string{ // by the function that connects as the superuser
		"connect": "or as `postgres` where", "prepare": "`CHECKPOINT`", "Terminator": "to terminate [idle and ignored sessions]",
		"EndAtStop": "that PostgreSQL has begun to stop", "PasswordSet": "whether a changed password has been set",
	}
	files, err := filepath.Glob(filepath.Join(root, "sidecar/postgres/*.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range file.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok {
				continue
			}
			uses := false
			ast.Inspect(function, func(n ast.Node) bool {
				name, ok := n.(*ast.Ident)
				uses = uses || ok && name.Name == "roleFallback"
				return true
			})
			if !uses {
				continue
			}
			found++
			if purpose := purposes[function.Name.Name]; purpose == "" || !strings.Contains(string(page), purpose) {
				t.Errorf("%s connects as the superuser, and docs/explanation/security.md does not say for what (%q)", function.Name.Name, purpose)
			}
		}
	}
	if found != len(purposes) {
		t.Errorf("%d functions connect as the superuser, and the page names %d purposes", found, len(purposes))
	}
}
