package startup

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// parseParameters reads what follows the version in a StartupMessage: pairs of strings that end with a zero byte each,
// and a zero byte behind the last. The last of several with the same name holds, as in the server.
func parseParameters(packet []byte) (Packet, error) {
	var parsed Packet
	for {
		name, rest, whole := bytes.Cut(packet, []byte{0})
		if !whole {
			return Packet{}, errors.New("the startup packet has no end")
		}
		if len(name) == 0 {
			return parsed.completed(len(rest))
		}
		value, rest, whole := bytes.Cut(rest, []byte{0})
		if !whole {
			return Packet{}, errors.New("a parameter of the startup packet has no value")
		}
		if err := parsed.set(string(name), string(value)); err != nil {
			return Packet{}, err
		}
		packet = rest
	}
}

// set takes one parameter.
func (p *Packet) set(name, value string) error {
	switch name {
	case "user":
		p.User = value
	case "database":
		p.Database = value
	case "replication":
		replication, understood := parseReplication(value)
		if !understood {
			return errors.New("the value of replication is invalid")
		}
		p.Replication = replication
	}
	return nil
}

// completed checks the whole, behind which beyond bytes were left.
func (p Packet) completed(beyond int) (Packet, error) {
	if beyond > 0 {
		return Packet{}, fmt.Errorf("%d bytes come behind the end of the startup packet", beyond)
	}
	if p.User == "" {
		return Packet{}, errors.New("the startup packet names no user")
	}
	if p.Database == "" {
		p.Database = p.User
	}
	return p, nil
}

// parseReplication reads the value as the server does: "database", or a boolean as in parse_bool
// (src/backend/utils/adt/bool.c), which takes every beginning of a word that no other word begins with.
func parseReplication(value string) (replication Replication, understood bool) {
	if value == "database" {
		return LogicalReplication, true
	}
	value = strings.ToLower(value)
	begins := func(word string, least int) bool { return len(value) >= least && strings.HasPrefix(word, value) }
	switch {
	case begins("true", 1), begins("yes", 1), value == "on", value == "1":
		return PhysicalReplication, true
	case begins("false", 1), begins("no", 1), begins("off", 2), value == "0":
		return NoReplication, true
	default:
		return NoReplication, false
	}
}
