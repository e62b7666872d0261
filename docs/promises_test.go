package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The table of promises names tests that exist, and every end-to-end test.
func TestPromises_areProvedByTestsThatExist(t *testing.T) {
	t.Parallel()
	const table = "../e2e/README.md"
	page, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	exist, endToEnd := map[string]bool{}, map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	err = filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range declared.FindAllStringSubmatch(string(text), -1) {
			exist[match[1]] = true
			if filepath.Dir(path) == "../e2e/tests" {
				endToEnd[match[1]] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(page), -1) {
		if !exist[match[1]] {
			t.Errorf("%s names %s, which does not exist", table, match[1])
		}
		delete(endToEnd, match[1])
	}
	for name := range endToEnd {
		t.Errorf("%s does not name %s", table, name)
	}
}
