package ports

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ErrNoPort says that every port is taken. The cluster gets no acknowledgement and stays awake.
var ErrNoPort = errors.New("no_port: every port of the gateway's range belongs to a Service")

// keptAfter is how long a port stays its last Service's after that has gone. Routes to it, in other nodes' kube-proxies or
// in DNS, are gone long before.
const keptAfter = 10 * time.Minute

// Owner is a Service that has a port.
type Owner struct {
	UID             types.UID
	Namespace, Name string
}

// entry is what is written about a port.
type entry struct {
	owner Owner
	freed time.Time // when its Service was seen to be gone; zero: it is there
}

// Ledger is what is written about the ports of a range. It is a value: methods that change it return another.
type Ledger struct {
	of      Range
	entries map[uint16]entry
}

// ReadLedger reads what a ConfigMap of the range holds. What is not understood belongs to somebody unknown, so that its port
// is given to nobody.
func ReadLedger(of Range, data map[string]string) Ledger {
	ledger := Ledger{of: of, entries: make(map[uint16]entry, len(data))}
	for key, value := range data {
		port, err := strconv.ParseUint(key, 10, 16)
		if err != nil || !of.Contains(uint16(port)) {
			continue
		}
		ledger.entries[uint16(port)] = readEntry(value)
	}
	return ledger
}

// Data is what the ConfigMap is to hold: by port, "UID namespace/name" and, where the Service is gone, since when.
func (l Ledger) Data() map[string]string {
	data := make(map[string]string, len(l.entries))
	for port, e := range l.entries {
		value := string(e.owner.UID) + " " + e.owner.Namespace + "/" + e.owner.Name
		if !e.freed.IsZero() {
			value += " freed " + e.freed.UTC().Format(time.RFC3339)
		}
		data[strconv.Itoa(int(port))] = value
	}
	return data
}

func readEntry(value string) entry {
	words := strings.Split(value, " ")
	if len(words) < 2 {
		return entry{owner: Owner{UID: types.UID(value)}}
	}
	namespace, name, _ := strings.Cut(words[1], "/")
	e := entry{owner: Owner{UID: types.UID(words[0]), Namespace: namespace, Name: name}}
	if len(words) == 4 && words[2] == "freed" {
		e.freed, _ = time.Parse(time.RFC3339, words[3]) // what is not a time leaves the port taken
	}
	return e
}

// Of is the port of a Service, the lowest if there should be several.
func (l Ledger) Of(uid types.UID) (uint16, bool) {
	found, has := uint16(0), false
	for port, e := range l.entries {
		if e.owner.UID == uid && (!has || port < found) {
			found, has = port, true
		}
	}
	return found, has
}

// Owners are the Services that have a port and are not known to be gone.
func (l Ledger) Owners() []Owner {
	var owners []Owner
	for _, port := range slices.Sorted(maps.Keys(l.entries)) {
		if e := l.entries[port]; e.freed.IsZero() {
			owners = append(owners, e.owner)
		}
	}
	return owners
}

// Used is how many ports belong to Services that are there.
func (l Ledger) Used() int { return len(l.Owners()) }

// Named are the ports that EndpointSlices of ours name, by the Service that the slice is of. They hold even where the
// ledger has been lost.
type Named map[uint16]types.UID

// Assign gives the Service its port: the one that it has, one that a slice of it names, one that nobody has had, or one
// whose Service has been gone for ten minutes and which no slice names. The ledger that is returned is the same if nothing had
// to be written. Errors are [ErrNoPort].
func (l Ledger) Assign(owner Owner, named Named, now time.Time) (Ledger, uint16, error) {
	if port, has := l.Of(owner.UID); has {
		if l.entries[port].freed.IsZero() {
			return l, port, nil
		}
		return l.with(port, entry{owner: owner}), port, nil
	}
	best, found, again := uint16(0), false, false
	for p := int(l.of.First); p <= int(l.of.Last); p++ {
		port := uint16(p)
		e, taken := l.entries[port]
		by, isNamed := named[port]
		switch {
		case isNamed && by == owner.UID && (!taken || e.reusable(now)):
			return l.with(port, entry{owner: owner}), port, nil
		case isNamed:
		case !taken && (!found || again):
			best, found, again = port, true, false
		case taken && !found && e.reusable(now):
			best, found, again = port, true, true
		}
	}
	if !found {
		return l, 0, fmt.Errorf("assign a port to Service %s/%s: %w", owner.Namespace, owner.Name, ErrNoPort)
	}
	return l.with(best, entry{owner: owner}), best, nil
}

// reusable tells whether another Service may have the port.
func (e entry) reusable(now time.Time) bool {
	return !e.freed.IsZero() && now.Sub(e.freed) >= keptAfter
}

// Free marks the ports of Services that are gone, from now on. It returns the same ledger and false if none is to be marked.
func (l Ledger) Free(gone []types.UID, now time.Time) (Ledger, bool) {
	changed := l
	marked := false
	for port, e := range l.entries {
		if !e.freed.IsZero() || !slices.Contains(gone, e.owner.UID) {
			continue
		}
		e.freed = now
		changed, marked = changed.with(port, e), true
	}
	return changed, marked
}

func (l Ledger) with(port uint16, e entry) Ledger {
	entries := maps.Clone(l.entries)
	entries[port] = e
	return Ledger{of: l.of, entries: entries}
}
