package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMarker_isLeftAndRemoved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "leaving")
	left := marker{path: path}
	for _, row := range []struct {
		rule  string
		do    func() error
		there bool
	}{
		{"nothing is taken back where nothing is", left.Remove, false},
		{"it is left", left.Leave, true},
		{"and left again", left.Leave, true},
		{"and taken back", left.Remove, false},
		{"without a path none is left", marker{}.Leave, false},
		{"and none taken back", marker{}.Remove, false},
	} {
		if err := row.do(); err != nil {
			t.Errorf("%s: %v", row.rule, err)
		}
		if _, err := os.Stat(path); (err == nil) != row.there {
			t.Errorf("%s: there %t, want %t", row.rule, err == nil, row.there)
		}
	}
	if err := (marker{path: filepath.Join(path, "below", "nothing")}).Leave(); err == nil {
		t.Error("a marker that cannot be left is no error")
	}
}
