package farewell

import (
	"os"
	"path/filepath"
	"testing"
)

func TestNote(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "leaving")
	note := Note{Path: path}
	for _, row := range []struct {
		rule  string
		do    func() error
		there bool
	}{
		{"nothing is taken back where nothing is", note.TakeBack, false},
		{"it is left", note.Leave, true},
		{"and left again", note.Leave, true},
		{"and taken back", note.TakeBack, false},
		{"without a path none is left", Note{}.Leave, false},
		{"and none taken back", Note{}.TakeBack, false},
	} {
		if err := row.do(); err != nil {
			t.Errorf("%s: %v", row.rule, err)
		}
		if _, err := os.Stat(path); (err == nil) != row.there {
			t.Errorf("%s: there %t, want %t", row.rule, err == nil, row.there)
		}
	}
	if err := (Note{Path: filepath.Join(path, "below", "nothing")}).Leave(); err == nil {
		t.Error("a note that cannot be left is no error")
	}
}
