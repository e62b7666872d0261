package cluster

import (
	"strings"
	"testing"
)

func TestSourceOfPackages(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ rule, file, want string }{
		{"the newer format", "Types: deb\n# URIs: http://old.example/debian\nURIs: http://mirror.example/debian http://second.example\nSuites: bookworm\n", "http://mirror.example/debian"},
		{"the older format", "# deb http://old.example\ndeb http://mirror.example/debian bookworm main\n", "http://mirror.example/debian"},
		{"the older format with options", "deb [signed-by=/k arch=amd64] https://mirror.example/debian bookworm main\n", "https://mirror.example/debian"},
		{"a file without a source", "Types: deb\n", ""},
	} {
		if got := sourceIn(strings.NewReader(row.file)); got != row.want {
			t.Errorf("%s: %q, want %q", row.rule, got, row.want)
		}
	}
}

func FuzzSourceIn(f *testing.F) {
	f.Add("URIs: http://mirror.example")
	f.Add("deb [x http://a b")
	f.Fuzz(func(t *testing.T, file string) {
		if uri := sourceIn(strings.NewReader(file)); strings.ContainsAny(uri, " \t\n") {
			t.Errorf("the source %q has white space in it", uri)
		}
	})
}
