package prestop

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMarker_isLeftAndRemoved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "leaving")
	marker := Marker{Path: path}
	for _, row := range []struct {
		rule  string
		do    func() error
		there bool
	}{
		{"nothing is taken back where nothing is", marker.Remove, false},
		{"it is left", marker.Leave, true},
		{"and left again", marker.Leave, true},
		{"and taken back", marker.Remove, false},
		{"without a path none is left", Marker{}.Leave, false},
		{"and none taken back", Marker{}.Remove, false},
	} {
		if err := row.do(); err != nil {
			t.Errorf("%s: %v", row.rule, err)
		}
		if _, err := os.Stat(path); (err == nil) != row.there {
			t.Errorf("%s: there %t, want %t", row.rule, err == nil, row.there)
		}
	}
	if err := (Marker{Path: filepath.Join(path, "below", "nothing")}).Leave(); err == nil {
		t.Error("a marker that cannot be left is no error")
	}
}
