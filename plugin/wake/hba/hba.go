// Package hba tells whether rules of pg_hba.conf tell addresses apart. PostgreSQL sees the gateway's address for a session
// that was held, so that such rules would be bypassed.
package hba

import (
	"slices"
	"strings"
)

// everybody are the addresses that a client's does not matter for; the loopback is nobody's who comes over the network.
var everybody = []string{"all", "0.0.0.0/0", "::/0", "127.0.0.1/32", "::1/128"}

// withMask are the same, written with a mask.
var withMask = [][2]string{{"0.0.0.0", "0.0.0.0"}, {"::", "::"}, {"127.0.0.1", "255.255.255.255"}}

// TellsAddressesApart reports whether a rule is for some addresses only. A line that is not understood is taken for one.
func TellsAddressesApart(lines []string) bool {
	for _, text := range lines {
		for line := range strings.Lines(text) {
			if apart(fields(line)) {
				return true
			}
		}
	}
	return false
}

// apart judges a line: TYPE DATABASE USER ADDRESS [MASK] METHOD [OPTIONS].
func apart(fields []string) bool {
	if len(fields) == 0 {
		return false
	}
	switch fields[0] {
	case "local":
		return false
	case "host", "hostssl", "hostnossl", "hostgssenc", "hostnogssenc":
	default: // an include, or no rule at all
		return true
	}
	if len(fields) < 5 {
		return true
	}
	address, next := fields[3], fields[4]
	return !slices.Contains(everybody, address) && !slices.Contains(withMask, [2]string{address, next})
}

// fields splits a line as PostgreSQL does: at white space, which quotes keep together; a comma joins what follows it to the
// same field, and # begins a comment. Quotes stay, since they take the meaning of a keyword away. A line that is continued
// by a backslash ends with a field that is no address.
func fields(line string) []string {
	var result []string
	var field strings.Builder
	quoted, joined := false, false
	end := func() {
		if field.Len() != 0 && !joined {
			result = append(result, field.String())
			field.Reset()
		}
	}
	for _, r := range line {
		switch {
		case r == '"':
			quoted = !quoted
			joined = false
			field.WriteRune(r)
		case quoted:
			field.WriteRune(r)
		case r == '#':
			joined = false
			end()
			return result
		case strings.ContainsRune(" \t\n\r\f\v", r):
			end()
		default:
			joined = r == ','
			field.WriteRune(r)
		}
	}
	joined = false
	end()
	return result
}
