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

// ErrNoPort says that every port is taken, or as many as the namespace may have. The cluster gets no acknowledgement
// and stays awake.
var ErrNoPort = errors.New("no_port: every port of the gateway's range belongs to a Service, or the namespace has its share")

// keptAfter is how long a port stays its last Service's after that has gone. Routes to it, in other nodes' kube-proxies
// or in DNS, are gone long before.
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
	byUID   map[types.UID]uint16 // the lowest if there should be several
}

// ReadLedger reads what a ConfigMap of the range holds. What is invalid belongs to an unknown Service, so that its
// port is given to nobody.
func ReadLedger(of Range, data map[string]string) Ledger {
	ledger := Ledger{of: of, entries: make(map[uint16]entry, len(data)), byUID: make(map[types.UID]uint16, len(data))}
	for key, value := range data {
		port, err := strconv.ParseUint(key, 10, 16)
		if err != nil || !of.Contains(uint16(port)) {
			continue
		}
		ledger.put(uint16(port), readEntry(value))
	}
	return ledger
}

func (l Ledger) put(port uint16, e entry) {
	before, taken := l.entries[port]
	if taken && l.byUID[before.owner.UID] == port {
		delete(l.byUID, before.owner.UID)
	}
	l.entries[port] = e
	if other, ok := l.byUID[e.owner.UID]; !ok || port < other {
		l.byUID[e.owner.UID] = port
	}
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
	port, ok := l.byUID[uid]
	return port, ok
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

// Request is a Service that needs a port.
type Request struct {
	Owner
	// Led is the port that a slice of the Service names; 0: none. It holds even where the ledger has been lost.
	Led uint16
	// First says that it is one of those that each cluster has: it gets a port while there is one.
	First bool
}

// Free reports whether no slice of ours names the port but those of the Service.
type Free func(port uint16, of types.UID) (bool, error)

// Age says which ports may be given.
type Age int

const (
	// Fresh are those that nobody has had; Rested, besides, those whose Service has been gone for ten minutes.
	Fresh Age = iota
	Rested
)

// Assign gives the Service its port: the one that it has, the one that a slice of it names, or one of that age which no
// slice names. The ledger that is returned is the same if nothing had to be written. Errors are [ErrNoPort] and free's.
func (l Ledger) Assign(request Request, age Age, free Free, now time.Time) (Ledger, uint16, error) {
	if port, has := l.Of(request.UID); has {
		if l.entries[port].freed.IsZero() {
			return l, port, nil
		}
		return l.with(port, entry{owner: request.Owner}), port, nil
	}
	candidates := []uint16{request.Led}
	for p := int(l.of.First); p <= int(l.of.Last); p++ {
		if _, taken := l.entries[uint16(p)]; !taken {
			candidates = append(candidates, uint16(p))
		}
	}
	if age == Rested {
		candidates = append(candidates, slices.Sorted(maps.Keys(l.entries))...)
	}
	for _, port := range candidates {
		if e, taken := l.entries[port]; !l.of.Contains(port) || taken && !e.reusable(now) {
			continue
		}
		is, err := free(port, request.UID)
		if err != nil {
			return l, 0, err
		}
		if is {
			return l.with(port, entry{owner: request.Owner}), port, nil
		}
	}
	return l, 0, fmt.Errorf("assign a port to Service %s/%s: %w", request.Namespace, request.Name, ErrNoPort)
}

// share adds how many ports are free, and how many each namespace has.
func (l Ledger) share(free *int, had map[string]int, now time.Time) {
	*free += l.of.Count() - len(l.entries)
	for _, e := range l.entries {
		if e.reusable(now) {
			*free++
		} else if e.freed.IsZero() {
			had[e.owner.Namespace]++
		}
	}
}

// Gives reports whether there is a port of that age.
func (l Ledger) Gives(age Age, now time.Time) bool {
	if len(l.entries) < l.of.Count() {
		return true
	}
	if age == Fresh {
		return false
	}
	for _, e := range l.entries {
		if e.reusable(now) {
			return true
		}
	}
	return false
}

// reusable reports whether another Service may have the port.
func (e entry) reusable(now time.Time) bool {
	return !e.freed.IsZero() && now.Sub(e.freed) >= keptAfter
}

// Free marks the ports of Services that are gone, from now on. It returns the same ledger and false if none is to be
// marked.
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
	changed := Ledger{of: l.of, entries: maps.Clone(l.entries), byUID: maps.Clone(l.byUID)}
	changed.put(port, e)
	return changed
}
