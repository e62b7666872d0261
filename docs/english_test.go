package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// banned are constructions that a native technical writer does not use, each with what to write instead.
var banned = map[string]string{
	`, since (the|a|an|it|its|no|only|they|these|this|that|there|nothing|each|all|kubectl)\b`: "because",
	`\b[Ss]omebody\b`:    "a user, a client, another field manager",
	`\b[Ww]hoever\b`:     "the one who is meant",
	`\b(go|goes) on\b`:   "keeps, continues",
	`\bnot understood\b`: "invalid",
}

// bannedInMessages are further ones, of what the programs say: a clause as the subject, and an actor that is not named.
var bannedInMessages = map[string]string{
	`\b(can|could) not be \w+ed\b`:                    "cannot and the verb, with the actor as the subject",
	`^(what|whether|who|which|where) .* is not known`: "cannot tell",
	`\b[Nn]obody (uses|used|knows)\b`:                 "is idle, is unknown",
	`\bis (tried|begun) again\b`:                      "retries, begins again",
}

func check(t *testing.T, where, text string, banned map[string]string) {
	t.Helper()
	for construction, instead := range banned {
		for _, found := range regexp.MustCompile(`.{0,40}(`+construction+`).{0,40}`).FindAllString(text, -1) {
			t.Errorf("%s: %q: write %s", where, found, instead)
		}
	}
}

func TestPages_arePlainEnglish(t *testing.T) {
	t.Parallel()
	for _, p := range pages(t) {
		check(t, p.path, p.text, banned)
	}
}

// Comments and manifests as well.
func TestMessages_arePlainEnglish(t *testing.T) {
	t.Parallel()
	for _, directory := range []string{"../plugin", "../sidecar", "../manifests", "../sql"} {
		err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/testdata/") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			check(t, path, string(text), banned)
			if !strings.HasSuffix(path, ".go") {
				return nil
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(node ast.Node) bool {
				if text, ok := node.(*ast.BasicLit); ok && text.Kind == token.STRING {
					check(t, files.Position(text.Pos()).String(), strings.Trim(text.Value, "\"`"), bannedInMessages)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
