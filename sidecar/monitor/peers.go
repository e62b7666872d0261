package monitor

import (
	"maps"
	"net/netip"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
)

// instanceLasts is for how long an address is taken to be an instance's after it was one.
const instanceLasts = time.Minute

// peers is what is known of those who connect.
type peers struct {
	// classes and previous are the clients of the last two samples: a session may be gone from the second when its event comes.
	classes, previous map[netip.AddrPort]activity.Class
	// instances are the addresses of the other instances, and when each was last one.
	instances map[netip.Addr]time.Time
}

// setInstances takes in which addresses the other instances have.
func (p *peers) setInstances(addresses []netip.Addr, now time.Time) {
	for address, seen := range p.instances { // one that was there until now was one until now, however rarely the Cluster changes
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

// sampled takes in whose the clients of a sample were.
func (p *peers) sampled(classes map[netip.AddrPort]activity.Class) {
	p.classes, p.previous = classes, p.classes
}

// class is whose a session was in one of the last two samples; empty: neither found it.
func (p *peers) class(peer netip.AddrPort) activity.Class {
	if class, ok := p.classes[peer]; ok {
		return class
	}
	return p.previous[peer]
}

// ended forgets a session: its port may be another client's next.
func (p *peers) ended(peer netip.AddrPort) {
	delete(p.classes, peer)
	delete(p.previous, peer)
}

// judge judges one ended session, and reports whether it was a use.
func (m *Monitor) judge(ended activity.Ended) bool {
	around := m.surroundings(ended.Peer)
	verdict := activity.Judge(ended, around)
	m.peers.ended(ended.Peer)
	m.parts.ClientAddrs.Ended(ended.Peer)
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

// surroundings is what a TCP session is judged by.
func (m *Monitor) surroundings(peer netip.AddrPort) activity.Surroundings {
	return activity.Surroundings{
		Class: m.peers.class(peer), Probe: m.parts.ClientAddrs.Probe(peer), Client: m.parts.ClientAddrs.ClientAddr(peer).Addr(),
		Instances: m.peers.instanceAddresses(time.Now()), Ignore: m.settings.Rules.Ignore,
	}
}
