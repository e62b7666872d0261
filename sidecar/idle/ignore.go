package idle

import (
	"fmt"
	"net/netip"
	"strings"
)

// Pattern describes sessions that never count. Every term that is given must match; one that is empty matches everything.
type Pattern struct {
	// User, Application and Database are names, in which * stands for any characters.
	User, Application, Database string
	// Client holds the addresses; invalid: not given.
	Client netip.Prefix
}

// maximumPatterns bounds the list: each is held against each session.
const maximumPatterns = 64

// parsePatterns reads a list such as "user=monitoring application=datadog*; client=10.0.0.0/8". Items are separated by
// semicolons or commas, the terms of an item, which must all match, by spaces. Its error says which item is not understood.
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

// parsePrefix reads an address or a range of addresses in CIDR notation.
func parsePrefix(value string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(value); err == nil && address.Zone() == "" {
		return Unmapped(netip.PrefixFrom(address, address.BitLen())), nil
	}
	prefix, err := netip.ParsePrefix(value)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not an address or a range such as 10.0.0.0/8", value)
	}
	return Unmapped(prefix), nil
}

// Unmapped is the range of IPv4 addresses that somebody wrote in the form that they have on a socket for both families: what
// ranges are held against never has that form. Another range is only cut to its length.
func Unmapped(prefix netip.Prefix) netip.Prefix {
	const mapped = 96 // bits in front of the IPv4 address
	if address := prefix.Addr(); address.Is4In6() && prefix.Bits() >= mapped {
		prefix = netip.PrefixFrom(address.Unmap(), prefix.Bits()-mapped)
	}
	return prefix.Masked()
}

// Matches reports whether a session of that user, application, database and address is described. A session over the Unix
// socket has no valid address.
func (p Pattern) Matches(user, application, database string, client netip.Addr) bool {
	return (p.User == "" || glob(p.User, user)) &&
		(p.Application == "" || glob(p.Application, application)) &&
		(p.Database == "" || glob(p.Database, database)) &&
		(!p.Client.IsValid() || p.Client.Contains(client.Unmap()))
}

// MatchesUnseen reports whether the pattern describes every session from that address, whatever else it is.
func (p Pattern) MatchesUnseen(client netip.Addr) bool {
	return p.User == "" && p.Application == "" && p.Database == "" && p.Client.IsValid() && p.Client.Contains(client.Unmap())
}

// glob matches a name against a pattern in which * stands for any characters.
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
