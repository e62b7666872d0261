package policies

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The page names the annotations that an instance may change, and no others.
func TestThePageNamesWhatInstancesMayChange(t *testing.T) {
	t.Parallel()
	between := func(path, begin, end string) string {
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, begun := strings.Cut(string(body), begin)
		part, _, ended := strings.Cut(rest, end)
		if !begun || !ended {
			t.Fatalf("%s has no part from %q to %q", path, begin, end)
		}
		return part
	}
	keys := func(pattern, text string) []string {
		var found []string
		for _, key := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			found = append(found, key[1])
		}
		slices.Sort(found)
		return found
	}
	permitted := keys(`'xata\.io/scale-to-zero-([a-z-]+)'`, between("instances/clusters.yaml", "name: foreign", "validations:"))
	named := keys("`-([a-z-]+)`", between("../../../docs/explanation/security.md", "on its Cluster, `cnpg.io/hibernation`; the annotations", ";"))
	if len(permitted) == 0 || !slices.Equal(permitted, named) {
		t.Errorf("the page names %q, the policy permits %q", named, permitted)
	}
}
