package waker

import (
	"net"
	"net/netip"
	"strings"
)

// tellApart reports whether a rule of pg_hba.conf holds for the client at one address, and not for the gateway at the
// other, or the other way round. A line that is invalid, or that names hosts, networks or pods, is taken for such a
// rule. PostgreSQL sees the gateway's address for a session that was held, so that such rules would be bypassed.
func tellApart(lines []string, client, gateway netip.Addr) bool {
	for _, text := range lines {
		for line := range strings.Lines(text) {
			if apart(hbaFields(line), client.Unmap(), gateway.Unmap()) {
				return true
			}
		}
	}
	return false
}

// apart judges a line: TYPE DATABASE USER ADDRESS [MASK] METHOD [OPTIONS].
func apart(fields []string, client, gateway netip.Addr) bool {
	if len(fields) == 0 {
		return false
	}
	switch fields[0] {
	case "local":
		return false
	case "host", "hostssl", "hostnossl":
	default: // an include, no rule at all, or one about GSS encryption, which a client may have with PostgreSQL only
		return true
	}
	if len(fields) < 5 {
		return true
	}
	if fields[3] == "all" {
		return false
	}
	block, ok := parseRange(fields[3], fields[4])
	// All of one family counts as all of both: a client and the gateway may reach an instance by different families.
	return !ok || block.Bits() != 0 && block.Contains(client) != block.Contains(gateway)
}

// parseRange parses a range of addresses with its length, or with the mask that follows.
func parseRange(address, mask string) (netip.Prefix, bool) {
	if block, err := netip.ParsePrefix(address); err == nil {
		return block, true
	}
	of, err := netip.ParseAddr(address)
	if err != nil {
		return netip.Prefix{}, false
	}
	by, err := netip.ParseAddr(mask)
	if err != nil || by.BitLen() != of.BitLen() {
		return netip.Prefix{}, false
	}
	ones, bits := net.IPMask(by.AsSlice()).Size()
	return netip.PrefixFrom(of, ones), bits != 0
}

// hbaFields splits a line as PostgreSQL does: at white space, which quotes keep together; a comma joins what follows it
// to the same field, and # begins a comment. Quotes stay, because they take the meaning of a keyword away. A line that
// is continued by a backslash ends with a field that is no address.
func hbaFields(line string) []string {
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
