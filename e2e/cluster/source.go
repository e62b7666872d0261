package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

// source is where this machine's apt gets Debian from; the files are read when needed, so that no host is written down here.
func source() (string, error) {
	var tried []error
	for _, path := range []string{"/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"} {
		file, err := os.Open(path)
		if err != nil {
			tried = append(tried, err)
			continue
		}
		uri := sourceIn(file)
		_ = file.Close()
		if uri != "" {
			return uri, nil
		}
		tried = append(tried, fmt.Errorf("%s names none", path))
	}
	return "", fmt.Errorf("find a source of Debian packages: %w", errors.Join(tried...))
}

// address is what a source's address looks like: `http://...`, but also `mirror+file:/...`.
var address = regexp.MustCompile(`^[a-z][a-z0-9+.-]*:/`)

// sourceIn finds the first source of packages in a file of either format of apt (sources.list(5)). Sources of security
// updates are left out, since they have no others, and those on discs.
func sourceIn(file io.Reader) string {
	stanza := map[string][]string{} // of the newer format
	field := ""
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := lines.Text()
		fields := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "#"):
		case len(fields) == 0:
			if uri := ofStanza(stanza); uri != "" {
				return uri
			}
			stanza, field = map[string][]string{}, ""
		case line[0] == ' ' || line[0] == '\t': // goes on with the field before
			stanza[field] = append(stanza[field], fields...)
		case fields[0] == "deb":
			if uri := ofLine(fields[1:]); uri != "" {
				return uri
			}
		default:
			name, value, _ := strings.Cut(line, ":")
			field = strings.ToLower(name)
			stanza[field] = strings.Fields(value)
		}
	}
	return ofStanza(stanza)
}

func ofStanza(stanza map[string][]string) string {
	if !slices.Contains(stanza["types"], "deb") || slices.Contains(stanza["enabled"], "no") ||
		len(stanza["suites"]) > 0 && !slices.ContainsFunc(stanza["suites"], ordinary) {
		return ""
	}
	if i := slices.IndexFunc(stanza["uris"], address.MatchString); i >= 0 {
		return stanza["uris"][i]
	}
	return ""
}

// ofLine takes the fields behind `deb`: perhaps options in brackets, the address, the suite, and so on.
func ofLine(fields []string) string {
	if len(fields) > 0 && strings.HasPrefix(fields[0], "[") {
		end := slices.IndexFunc(fields, func(field string) bool { return strings.HasSuffix(field, "]") })
		fields = fields[end+1:]
	}
	if len(fields) > 1 && address.MatchString(fields[0]) && ordinary(fields[1]) {
		return fields[0]
	}
	return ""
}

func ordinary(suite string) bool { return !strings.Contains(suite, "security") }
