package process

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestConstant_takesOnlyUnchangedMappingsOfTheProgram(t *testing.T) {
	t.Parallel()
	const code = "00400000-00bcd000 r-xp 00000000 00:94 11108602                           /sidecar\n"
	const clean, written = "Rss: 7476 kB\nAnonymous:             0 kB\nVmFlags: rd ex\n", "Anonymous:             4 kB\n"
	want := []mapping{{0x400000, 0x7cd000}}
	for _, row := range []struct {
		rule, mappings string
		want           []mapping
	}{
		{"code is", code + clean, want},
		{"constants are", strings.Replace(code, "r-xp", "r--p", 1) + clean, want},
		{"what the linker has written to is not", code + written, nil},
		{"variables are not", strings.Replace(code, "r-xp", "rw-p", 1) + clean, nil},
		{"another file is not the program", strings.Replace(code, "/sidecar", "/lib/libc.so", 1) + clean, nil},
		{"memory without a file is not", "c000000000-c000400000 r--p 00000000 00:00 0 \n" + clean, nil},
		{"each is judged by itself", "00300000-00400000 rw-p 00000000 00:94 1 /sidecar\n" + clean + code + clean + "c0-d0 rw-p 0 0 0\n" + clean, want},
		{"what is not understood is not", "x-y r-xp 00000000 00:94 1 /sidecar\n" + clean + "4-3 r-xp 00000000 00:94 1 /sidecar\n" + clean, nil},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got := constant(row.mappings, "/sidecar"); !slices.Equal(got, row.want) {
				t.Errorf("got %x", got)
			}
		})
	}
}

func TestMemory_leavesLessMapped(t *testing.T) {
	before := fileResident(t)
	if err := TrimMemory(); err != nil {
		t.Fatal(err)
	}
	if after := fileResident(t); after >= before {
		t.Errorf("%d KiB of files were mapped, and now %d", before, after)
	}
}

// fileResident returns this process's resident memory that is mapped from files, in KiB.
func fileResident(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssFile:")
	size, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return size
}
