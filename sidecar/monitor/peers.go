package monitor

import (
	"maps"
	"net/netip"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
)

// instanceLasts is how long an address still counts as an instance's after it was last one.
const instanceLasts = time.Minute

// peers is what is known about clients.
type peers struct {
	// classes and previous hold the clients of the last two samples: a session may be missing from the newer one when its event
	// arrives.
	classes, previous map[netip.AddrPort]activity.Class
	// instances maps the addresses of the other instances to the time each was last one; zero while it is one.
	instances map[netip.Addr]time.Time
}

// setInstances updates the addresses of the other instances.
func (p *peers) setInstances(addresses []netip.Addr, now time.Time) {
	for address, seen := range p.instances { // an address was valid until this update, however long ago the last one was
		if seen.IsZero() {
			p.instances[address] = now
		}
	}
	maps.DeleteFunc(p.instances, func(_ netip.Addr, seen time.Time) bool { return now.Sub(seen) > instanceLasts })
	if p.instances == nil {
		p.instances = map[netip.Addr]time.Time{}
	}
	for _, address := range addresses {
		p.instances[address] = time.Time{}
	}
}

// instanceAddresses returns the addresses that the other instances have, or had within the last minute.
func (p *peers) instanceAddresses(now time.Time) []netip.Addr {
	var addresses []netip.Addr
	for address, until := range p.instances {
		if until.IsZero() || now.Sub(until) <= instanceLasts {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// sampled stores the classes of a sample's clients.
func (p *peers) sampled(classes map[netip.AddrPort]activity.Class) {
	p.classes, p.previous = classes, p.classes
}

// class returns the session's class in the last two samples, or empty if neither contained it.
func (p *peers) class(peer netip.AddrPort) activity.Class {
	if class, ok := p.classes[peer]; ok {
		return class
	}
	return p.previous[peer]
}

// ended forgets a session: another client may reuse its port.
func (p *peers) ended(peer netip.AddrPort) {
	delete(p.classes, peer)
	delete(p.previous, peer)
}

// judge judges an ended session and reports whether it was a use.
func (m *Monitor) judge(ended activity.Ended) bool {
	around := m.surroundings(ended.Peer)
	verdict := activity.Judge(ended, around)
	m.noteEnd(ended, around)
	m.peers.ended(ended.Peer)
	m.parts.ClientAddrs.ended(ended.Peer)
	m.parts.Observer.Judged(verdict)
	if verdict == activity.VerdictUnseen {
		m.status.LastPeer = around.Client
	}
	if !verdict.Used() {
		return false
	}
	m.since.used = later(m.since.used, ended.At)
	return true
}

// surroundings returns the context in which a TCP session is judged.
func (m *Monitor) surroundings(peer netip.AddrPort) activity.Surroundings {
	return activity.Surroundings{
		Class: m.peers.class(peer), Probe: m.parts.ClientAddrs.isReportedProbe(peer), Client: m.parts.ClientAddrs.ClientAddr(peer).Addr(),
		Instances: m.peers.instanceAddresses(time.Now()), Ignore: m.settings.Rules.Ignore,
	}
}
