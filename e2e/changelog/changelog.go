// Package changelog reads CHANGELOG.md, whose format is that of Keep a Changelog.
package changelog

import (
	"fmt"
	"strings"
)

// Section is what the changelog says of a version, such as v1.2.3, without the heading.
func Section(text, version string) (string, error) {
	number, after := strings.CutPrefix(version, "v")
	if !after || number == "" {
		return "", fmt.Errorf("the version is %q; allowed is a version after a v, such as v1.2.3", version)
	}
	var section []string
	found := false
	for line := range strings.Lines(text) {
		if heading, ok := strings.CutPrefix(line, "## ["); ok {
			if found {
				break
			}
			name, _, _ := strings.Cut(heading, "]")
			found = name == number
			continue
		}
		if found {
			section = append(section, line)
		}
	}
	body := strings.TrimSpace(strings.Join(section, ""))
	if body == "" {
		return "", fmt.Errorf("the changelog says nothing of %s under a heading that begins with ## [%s]", version, number)
	}
	return body + "\n", nil
}
