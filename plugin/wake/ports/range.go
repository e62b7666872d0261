// Package ports says which port of the gateway belongs to which Service.
//
// A port belongs to one Service, by UID, on every replica, and is not given to another before every route to it must be
// gone: a stale route must never lead one tenant's client into another's database. What belongs to whom is kept in
// ConfigMaps, each changed only on the state that was read, so that two replicas can never give one port to two
// Services.
package ports

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
)

// Range is a range of ports, both ends included.
type Range struct{ First, Last uint16 }

// The ports that a range may contain: no privileged ones.
const lowest, highest = 1024, 65535

var (
	// ErrNotARange says that a text is not a range of ports.
	ErrNotARange = errors.New("not a range of ports such as 10000-29999, within 1024-65535")
	// ErrOverlap says that ports of the range are used by something else.
	ErrOverlap = errors.New("the range overlaps ports that are used otherwise")
)

var (
	written = regexp.MustCompile(`^([0-9]{4,5})-([0-9]{4,5})$`)
	kernels = regexp.MustCompile(`^\s*([0-9]{1,5})\s+([0-9]{1,5})\s*$`)
)

// ParseRange reads a range such as "10000-29999". Errors are [ErrNotARange].
func ParseRange(value string) (Range, error) {
	r, ok := parse(written, value)
	if !ok || r.First < lowest || r.Last < r.First {
		return Range{}, fmt.Errorf("%q: %w", value, ErrNotARange)
	}
	return r, nil
}

func parse(form *regexp.Regexp, value string) (Range, bool) {
	ends := form.FindStringSubmatch(value)
	if ends == nil {
		return Range{}, false
	}
	first, err1 := strconv.ParseUint(ends[1], 10, 16)
	last, err2 := strconv.ParseUint(ends[2], 10, 16)
	return Range{uint16(first), uint16(last)}, err1 == nil && err2 == nil
}

// String writes the range as [ParseRange] reads it.
func (r Range) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// Count is how many ports there are.
func (r Range) Count() int { return int(r.Last) - int(r.First) + 1 }

// Contains reports whether the port is in the range.
func (r Range) Contains(port uint16) bool { return r.First <= port && port <= r.Last }

// ephemeralFile is where Linux says which ports it gives to outgoing connections: one of those could be taken when the
// gateway wants to listen on it.
const ephemeralFile = "/proc/sys/net/ipv4/ip_local_port_range"

// Ephemeral reads the ports that the kernel gives to outgoing connections.
func Ephemeral() (Range, error) {
	content, err := os.ReadFile(ephemeralFile)
	if err != nil {
		return Range{}, fmt.Errorf("read the kernel's ports of outgoing connections: %w", err)
	}
	r, ok := parse(kernels, string(content))
	if !ok {
		return Range{}, fmt.Errorf("read %s: %q is not a range", ephemeralFile, content)
	}
	return r, nil
}

// CheckFree fails if the range contains ports that the kernel gives to outgoing connections, or one of the plugin's own
// listeners. Errors are [ErrOverlap].
func (r Range) CheckFree(ephemeral Range, own []uint16) error {
	if r.First <= ephemeral.Last && ephemeral.First <= r.Last {
		return fmt.Errorf("%w: the kernel gives %s to outgoing connections (net.ipv4.ip_local_port_range)",
			ErrOverlap, ephemeral)
	}
	for _, port := range own {
		if r.Contains(port) {
			return fmt.Errorf("%w: the plugin itself listens on %d", ErrOverlap, port)
		}
	}
	return nil
}
