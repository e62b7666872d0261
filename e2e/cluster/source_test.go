package cluster

import "testing"

func TestSourceIn_choosesTheFirstOfPackages(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ rule, targets, want string }{
		{"the first of several", "trixie http://mirror.example/debian/\ntrixie-updates http://second.example/\n", "http://mirror.example/debian/"},
		{"a list of mirrors in a file is a source", "trixie mirror+file:/etc/apt/mirrors/debian.list/\n", "mirror+file:/etc/apt/mirrors/debian.list/"},
		{"security updates have no other packages", "trixie-security http://security.example/\ntrixie http://mirror.example/\n", "http://mirror.example/"},
		{"a disc is no source", "trixie cdrom:[Debian 13]/\ntrixie http://mirror.example/\n", "http://mirror.example/"},
		{"there is none", "", ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got := sourceIn(row.targets); got != row.want {
				t.Errorf("%q, want %q", got, row.want)
			}
		})
	}
}
