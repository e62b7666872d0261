package mutants

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// hunk is one change of a file in a patch.
type hunk struct{ before, after string }

// parsePatch parses a unified diff into the hunks of each file, keyed by the path below the module's root.
func parsePatch(patch string) (map[string][]hunk, error) {
	files := map[string][]hunk{}
	file := ""
	for line := range strings.Lines(patch) {
		hunks := files[file]
		switch last := len(hunks) - 1; {
		case strings.HasPrefix(line, "--- "):
			file = ""
		case strings.HasPrefix(line, "+++ b/"):
			file = strings.TrimSpace(strings.TrimPrefix(line, "+++ b/"))
		case file == "": // before the first file, or between two
		case strings.HasPrefix(line, "@@ "):
			files[file] = append(hunks, hunk{})
		case last < 0:
			return nil, fmt.Errorf("%q is outside of a hunk", line)
		case line[0] == '-':
			hunks[last].before += line[1:]
		case line[0] == '+':
			hunks[last].after += line[1:]
		case line[0] == ' ':
			hunks[last].before += line[1:]
			hunks[last].after += line[1:]
		default:
			return nil, fmt.Errorf("%q is no line of a hunk", line)
		}
	}
	if len(files) == 0 {
		return nil, errors.New("it changes no file")
	}
	return files, nil
}

// applyHunks applies hunks to a text. A hunk is located only by its lines, which must occur exactly once: line numbers become
// stale with every change above them.
func applyHunks(text string, hunks []hunk) (string, error) {
	for _, h := range hunks {
		if n := strings.Count(text, h.before); n != 1 || h.before == "" {
			return "", fmt.Errorf("these lines occur %d times:\n%s", n, h.before)
		}
		text = strings.Replace(text, h.before, h.after, 1)
	}
	return text, nil
}

func TestApplyHunks_demandsThatThePlaceIsCertain(t *testing.T) {
	t.Parallel()
	const patch = "diff --git a/x/y.go b/x/y.go\n--- a/x/y.go\n+++ b/x/y.go\n@@ -1,3 +1,2 @@\n one\n-two\n+2\n three\n"
	for _, row := range []struct {
		rule, text, want string
	}{
		{"it is found although lines were added above", "new\none\ntwo\nthree\n", "new\none\n2\nthree\n"},
		{"lines that have changed are refused", "one\nzwei\nthree\n", ""},
		{"lines that occur twice are refused", "one\ntwo\nthree\none\ntwo\nthree\n", ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			files, err := parsePatch(patch)
			if err != nil {
				t.Fatal(err)
			}
			got, err := applyHunks(row.text, files["x/y.go"])
			if got != row.want || (err == nil) != (row.want != "") {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}
