package config

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/ports"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// The limits of the durations: a wake takes seconds, and its clients need the gateway, which stands in for at most
// StandInFor; a handover must fit into an announcement, which lasts half a minute, and a drain into the grace period.
const (
	shortestWake                               = 10 * time.Second
	longestWake, longestHandover, longestDrain = plan.StandInFor, 10 * time.Second, 24 * time.Hour
)

// gateway returns the checked settings of the wake gateway, or nil if no pod is named.
func (r *reader) gateway(c Config) *Gateway {
	g := &Gateway{
		Ports: r.ports(c), Allow: list(r, "GATEWAY_ALLOW",
			"it must be ranges of addresses separated by commas, such as 192.0.2.0/24,2001:db8::/32", prefix),
		WakeTimeout:  r.duration("WAKE_TIMEOUT", shortestWake, longestWake),
		HandoverWait: r.duration("HANDOVER_WAIT", 0, longestHandover),
		DrainTimeout: r.duration("DRAIN_TIMEOUT", 0, longestDrain),
		Replica: endpointslice.Replica{
			Pod: r.values["POD_NAME"], Namespace: r.values["POD_NAMESPACE"], UID: types.UID(r.values["POD_UID"]),
			Node: r.values["NODE_NAME"],
		},
	}
	if r.values["WAKE_HIBERNATED_BY"] != "" {
		g.HibernatedBy = list(r, "WAKE_HIBERNATED_BY",
			"it must be names of field managers separated by commas, such as sablier,other", manager)
	}
	g.WakeSourceBurst = r.number("WAKE_SOURCE_BURST", mostAtOnce, "")
	g.WakeBurst, g.WakeRate = r.number("WAKE_BURST", mostAtOnce, ""), r.number("WAKE_RATE", mostEachSecond, "")
	g.Held = r.number("GATEWAY_HELD", r.room(g.Ports), ", as RLIMIT_NOFILE allows besides the ports of GATEWAY_PORTS")
	if g.Replica.Pod == "" {
		return nil
	}
	for _, name := range []string{"POD_NAMESPACE", "POD_UID"} {
		if r.values[name] == "" {
			r.bad(name, "it must be set, because POD_NAME is")
		}
	}
	g.Replica.Addresses = list(r, "POD_IPS", "it must be addresses separated by commas, because POD_NAME is set",
		func(text string) (netip.Addr, bool) {
			address, err := netip.ParseAddr(text)
			return address.Unmap(), err == nil
		})
	return g
}

// ports checks that the gateway's ports are not used otherwise.
func (r *reader) ports(c Config) ports.Range {
	const name = "GATEWAY_PORTS"
	of, err := ports.ParseRange(r.values[name])
	if err != nil {
		r.bad(name, "it must be a range within 1024-65535, such as 10000-29999")
		return of
	}
	if r.values["POD_NAME"] == "" {
		return of
	}
	ephemeral, err := ports.Ephemeral()
	if err == nil {
		err = of.CheckFree(ephemeral, listening(c.ServerAddress, c.MetricsAddress, c.WakeEndpointAddress))
	}
	if err != nil {
		r.bad(name, err.Error())
	}
	return of
}

// listening returns the ports of addresses such as :8080.
func listening(addresses ...string) []uint16 {
	var found []uint16
	for _, address := range addresses {
		_, text, err := net.SplitHostPort(address)
		if err != nil {
			continue // not served, or reported as invalid elsewhere
		}
		if number, err := strconv.ParseUint(text, 10, 16); err == nil {
			found = append(found, uint16(number))
		}
	}
	return found
}

// list reads values that are separated by commas; nil if one of them is invalid.
func list[T any](r *reader, name, allowed string, parse func(string) (T, bool)) (values []T) {
	for text := range strings.SplitSeq(r.values[name], ",") {
		value, ok := parse(text)
		if !ok {
			r.bad(name, allowed)
			return nil
		}
		values = append(values, value)
	}
	return values
}

// manager reads the name of a field manager, which Kubernetes limits to 128 printable characters.
func manager(text string) (string, bool) {
	name := strings.TrimSpace(text)
	unprintable := strings.ContainsFunc(name, func(c rune) bool { return !unicode.IsPrint(c) })
	return name, name != "" && len(name) <= 128 && !unprintable
}

func prefix(text string) (netip.Prefix, bool) {
	prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
	return idle.Unmapped(prefix), err == nil
}

// The limits of the numbers. A million is more than any fleet.
const mostAtOnce, mostEachSecond = 1_000_000, 1000

// room returns how many clients can be held with the file descriptors of the process. Without a gateway nothing uses
// them.
func (r *reader) room(of ports.Range) int {
	descriptors, err := gateway.Descriptors()
	if err != nil || r.values["POD_NAME"] == "" {
		return mostAtOnce
	}
	return max(1, gateway.DefaultLimits().Room(descriptors, of.Count()))
}

// number returns a positive number, or 0 if none is set. why is what limits it.
func (r *reader) number(name string, most int, why string) int {
	if r.values[name] == "" {
		return 0
	}
	number, err := strconv.Atoi(r.values[name])
	if err != nil || number < 1 || number > most {
		r.bad(name, fmt.Sprintf("it must be a number from 1 to %d%s", most, why))
	}
	return number
}

func (r *reader) duration(name string, shortest, longest time.Duration) time.Duration {
	d, err := time.ParseDuration(r.values[name])
	if err != nil || d < shortest || d > longest {
		r.bad(name, fmt.Sprintf("it must be a duration from %s to %s, such as 20s", shortest, longest))
	}
	return d
}
