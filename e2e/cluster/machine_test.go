package cluster

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestSpace_addsUpWhatADiskMustHold(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	one, other := filepath.Join(folder, "one"), filepath.Join(folder, "other", "deep") // neither exists
	for _, row := range []struct {
		rule  string
		needs map[string]uint64
		want  string
	}{
		{"what fits is no problem", map[string]uint64{one: 1, other: 1}, ""},
		{"two folders share a disk", map[string]uint64{one: 1 << 62, other: 1 << 62}, "the disk of " + one + ", " + other + " has "},
		{"one needs more than there is", map[string]uint64{one: 1 << 62}, "the disk of " + one + " has "},
	} {
		err := space(row.needs)
		if (err != nil) != (row.want != "") || err != nil && !strings.HasPrefix(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", row.rule, err, row.want)
		}
	}
}
