package startup

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// parseParameters reads what follows the version in a StartupMessage: pairs of strings that end with a zero byte each, and a
// zero byte behind the last. The last of several with the same name holds, as in the server.
func parseParameters(packet []byte) (Opening, error) {
	var opening Opening
	for {
		name, rest, whole := bytes.Cut(packet, []byte{0})
		if !whole {
			return Opening{}, errors.New("the startup packet has no end")
		}
		if len(name) == 0 {
			return opening.completed(len(rest))
		}
		value, rest, whole := bytes.Cut(rest, []byte{0})
		if !whole {
			return Opening{}, errors.New("a parameter of the startup packet has no value")
		}
		if err := opening.set(string(name), string(value)); err != nil {
			return Opening{}, err
		}
		packet = rest
	}
}

// set takes one parameter.
func (o *Opening) set(name, value string) error {
	switch name {
	case "user":
		o.User = value
	case "database":
		o.Database = value
	case "application_name":
		o.Application = value
	case "replication":
		replication, understood := parseReplication(value)
		if !understood {
			return errors.New("the value of replication is not understood")
		}
		o.Replication = replication
	}
	return nil
}

// completed checks the whole, behind which beyond bytes were left.
func (o Opening) completed(beyond int) (Opening, error) {
	if beyond > 0 {
		return Opening{}, fmt.Errorf("%d bytes come behind the end of the startup packet", beyond)
	}
	if o.User == "" {
		return Opening{}, errors.New("the startup packet names no user")
	}
	if o.Database == "" {
		o.Database = o.User
	}
	return o, nil
}

// parseReplication reads the value as the server does: "database", or a boolean as in parse_bool (src/backend/utils/adt/bool.c),
// which takes every beginning of a word that no other word begins with.
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
