package idle

import (
	"fmt"
	"net/netip"
	"strings"
)

// Pattern describes sessions that never count. All given terms must match; an empty one matches everything.
type Pattern struct {
	// User, Application and Database are names, in which * matches any characters.
	User, Application, Database string
	// Client is the range of addresses; invalid if not given.
	Client netip.Prefix
}

// maximumPatterns limits the list, because each pattern is compared with each session.
const maximumPatterns = 64

// parsePatterns parses a list such as "user=monitoring application=datadog*; client=192.0.2.10". Items are separated by
// semicolons or commas. The terms of an item are separated by spaces and must all match. The error names the invalid
// item.
func parsePatterns(value string) ([]Pattern, error) {
	var patterns []Pattern
	for _, item := range strings.FieldsFunc(value, func(r rune) bool { return r == ';' || r == ',' }) {
		item = strings.TrimSpace(item)
		pattern, err := parsePattern(item)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", item, err)
		}
		if patterns = append(patterns, pattern); len(patterns) > maximumPatterns {
			return nil, fmt.Errorf("more than %d patterns", maximumPatterns)
		}
	}
	if len(patterns) == 0 {
		return nil, fmt.Errorf("it is empty; remove the annotation")
	}
	return patterns, nil
}

func parsePattern(item string) (Pattern, error) {
	var p Pattern
	terms := strings.Fields(item)
	if len(terms) == 0 {
		return p, fmt.Errorf("an item is empty")
	}
	given := map[string]bool{}
	for _, term := range terms {
		key, value, _ := strings.Cut(term, "=")
		if value == "" {
			return p, fmt.Errorf("%q is not of the form KEY=VALUE", term)
		}
		if given[key] {
			return p, fmt.Errorf("%s= is given twice", key)
		}
		given[key] = true
		switch key {
		case "user":
			p.User = value
		case "application":
			p.Application = value
		case "database":
			p.Database = value
		case "client":
			prefix, err := parsePrefix(value)
			if err != nil {
				return p, err
			}
			p.Client = prefix
		default:
			return p, fmt.Errorf("%q is not a key; keys are user, application, database and client", key)
		}
	}
	return p, nil
}

// parsePrefix parses an address or a range of addresses in CIDR notation.
func parsePrefix(value string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(value); err == nil && address.Zone() == "" {
		return Unmapped(netip.PrefixFrom(address, address.BitLen())), nil
	}
	prefix, err := netip.ParsePrefix(value)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not an address or a range such as 192.0.2.0/24", value)
	}
	return Unmapped(prefix), nil
}

// Unmapped converts a range of IPv4-mapped IPv6 addresses to IPv4, because the addresses that ranges are compared with
// are never in the mapped form. Other ranges are only masked to their length.
func Unmapped(prefix netip.Prefix) netip.Prefix {
	const mapped = 96 // bits in front of the IPv4 address
	if address := prefix.Addr(); address.Is4In6() && prefix.Bits() >= mapped {
		prefix = netip.PrefixFrom(address.Unmap(), prefix.Bits()-mapped)
	}
	return prefix.Masked()
}

// Matches reports whether the pattern matches a session of that user, application, database and address. A session over
// the Unix socket has no valid address.
func (p Pattern) Matches(user, application, database string, client netip.Addr) bool {
	return (p.User == "" || glob(p.User, user)) &&
		(p.Application == "" || glob(p.Application, application)) &&
		(p.Database == "" || glob(p.Database, database)) &&
		(!p.Client.IsValid() || p.Client.Contains(client.Unmap()))
}

// MatchesUnseen reports whether the pattern matches every session from that address, whatever its other properties.
func (p Pattern) MatchesUnseen(client netip.Addr) bool {
	return p.User == "" && p.Application == "" && p.Database == "" && p.Client.IsValid() &&
		p.Client.Contains(client.Unmap())
}

// glob matches a name against a pattern in which * matches any characters.
func glob(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == name
	}
	first, last := parts[0], parts[len(parts)-1]
	if len(name) < len(first)+len(last) || !strings.HasPrefix(name, first) || !strings.HasSuffix(name, last) {
		return false
	}
	name = name[len(first) : len(name)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, ok := strings.Cut(name, part)
		if !ok {
			return false
		}
		name = after
	}
	return true
}
