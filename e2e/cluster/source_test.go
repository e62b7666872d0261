package cluster

import (
	"strings"
	"testing"
)

func TestSourceOfPackages(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ rule, file, want string }{
		{"the newer format", "Types: deb\n# URIs: http://old.example/debian\nURIs: http://mirror.example/debian http://second.example\nSuites: bookworm\n", "http://mirror.example/debian"},
		{"a field may go on in the next line", "Types: deb\nURIs:\n http://mirror.example/debian\nSuites: bookworm\n", "http://mirror.example/debian"},
		{"names of fields may be written as one likes", "types: deb\nuris: http://mirror.example/debian\n", "http://mirror.example/debian"},
		{"a list of mirrors in a file is a source", "Types: deb deb-src\nURIs: mirror+file:/etc/apt/mirrors/debian.list\nSuites: trixie\n", "mirror+file:/etc/apt/mirrors/debian.list"},
		{"security updates come second even if they are written first", "Types: deb\nURIs: http://security.example\nSuites: bookworm-security\n\nTypes: deb\nURIs: http://mirror.example\nSuites: bookworm\n", "http://mirror.example"},
		{"one that is turned off does not count", "Types: deb\nEnabled: no\nURIs: http://off.example\n\nTypes: deb\nURIs: http://on.example\n", "http://on.example"},
		{"one of sources only does not count", "Types: deb-src\nURIs: http://mirror.example\nSuites: bookworm\n", ""},
		{"the older format", "# deb http://old.example\ndeb http://mirror.example/debian bookworm main\n", "http://mirror.example/debian"},
		{"the older format with options", "deb [signed-by=/k arch=amd64] https://mirror.example/debian bookworm main\n", "https://mirror.example/debian"},
		{"the older format's other lines do not count", "deb cdrom:[Debian 12]/ bookworm main\ndeb-src http://src.example bookworm main\ndeb http://security.example bookworm-security main\ndeb http://mirror.example bookworm main\n", "http://mirror.example"},
		{"a file without a source", "Types: deb\n", ""},
		{"an empty file", "", ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got := sourceIn(strings.NewReader(row.file)); got != row.want {
				t.Errorf("%q, want %q", got, row.want)
			}
		})
	}
}

// FuzzSourceIn: whatever is found is written into a file of apt's, where white space would begin another field.
func FuzzSourceIn(f *testing.F) {
	f.Add("Types: deb\nURIs: http://mirror.example\n")
	f.Add("deb [x http://a b")
	f.Add("deb [")
	f.Add(" \n\t:\n")
	f.Fuzz(func(t *testing.T, file string) {
		if uri := sourceIn(strings.NewReader(file)); uri != "" && !address.MatchString(uri) || strings.ContainsAny(uri, " \t\n\r") {
			t.Errorf("the source is %q", uri)
		}
	})
}
