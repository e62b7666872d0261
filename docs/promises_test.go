package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The table of promises names tests that exist, and every end-to-end test. No row has only tests that `make test` leaves out.
func TestPromises_areProvedByTestsThatExist(t *testing.T) {
	t.Parallel()
	const table = "../e2e/README.md"
	page, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	exist, endToEnd, whole := map[string]bool{}, map[string]bool{}, map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)(?: \{\n\t(whole)\(t\))?`)
	err = filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range declared.FindAllStringSubmatch(string(text), -1) {
			exist[match[1]] = true
			if filepath.Dir(path) == "../e2e/tests" {
				endToEnd[match[1]], whole[match[1]] = true, match[2] != ""
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test\\w+)`")
	for row := range strings.Lines(string(page)) {
		proofs, left := 0, 0
		for _, match := range named.FindAllStringSubmatch(row, -1) {
			if !exist[match[1]] {
				t.Errorf("%s names %s, which does not exist", table, match[1])
			}
			if whole[match[1]] {
				left++
			} else {
				proofs++
			}
			delete(endToEnd, match[1])
		}
		if left != 0 && proofs == 0 {
			t.Errorf("%s: make test proves nothing of this: %s", table, row)
		}
	}
	for name := range endToEnd {
		t.Errorf("%s does not name %s", table, name)
	}
}
