// Package trim gives back the memory that a program at rest does not use.
package trim

import (
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Memory collects garbage, returns the free heap to the kernel and unmaps the program. The order matters: the collection itself
// maps what describes every frame of every stack.
func Memory() error {
	debug.FreeOSMemory()
	return Program()
}

// Program unmaps the pages of this program's code and constants. What is used again comes back from the page cache; what only
// the start or a rare task needed does not, and that is a good part: no instance of PostgreSQL is to pay for it.
func Program() error {
	executable, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find the program: %w", err)
	}
	mappings, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("read the mappings: %w", err)
	}
	for _, m := range constant(string(mappings), executable) {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.length, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("give back a mapping of the program: %w", errno)
		}
	}
	return nil
}

// mapping is a range of memory.
type mapping struct{ start, length uintptr }

// constant finds in /proc/self/smaps the mappings of a file that hold nothing but what is in it: what the program, or the
// linker before it was made read-only, has written to one would be lost.
func constant(mappings, file string) []mapping {
	var found []mapping
	var current mapping
	ours := false
	for line := range strings.Lines(mappings) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case !strings.HasSuffix(fields[0], ":"): // 00400000-00bcd000 r-xp 00000000 00:94 11108602 /sidecar
			current, ours = bounds(fields[0])
			ours = ours && len(fields) == 6 && fields[5] == file && !strings.Contains(fields[1], "w")
		case ours && fields[0] == "Anonymous:" && len(fields) > 1 && fields[1] == "0":
			found = append(found, current)
		}
	}
	return found
}

// bounds reads the range of a mapping.
func bounds(text string) (mapping, bool) {
	from, to, ok := strings.Cut(text, "-")
	if !ok {
		return mapping{}, false
	}
	start, err := strconv.ParseUint(from, 16, 64)
	if err != nil {
		return mapping{}, false
	}
	end, err := strconv.ParseUint(to, 16, 64)
	if err != nil || end <= start {
		return mapping{}, false
	}
	return mapping{uintptr(start), uintptr(end - start)}, true
}
