package monitor

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// instanceLasts is how long an address still counts as an instance's after it was last one.
const instanceLasts = time.Minute

// peers is what is known about clients.
type peers struct {
	addrs    *ClientAddrs
	observer Observer
	ignore   []idle.Pattern // by the settings
	// classes and previous hold the clients of the last two samples: a session may be missing from the newer one when its
	// event arrives.
	classes, previous map[netip.AddrPort]activity.Class
	// instances maps the addresses of the other instances to the time each was last one; zero while it is one.
	instances map[netip.Addr]time.Time
	// direct has the sessions open at the newest sample, and whether each is direct. lastDirect is [Status.LastDirect].
	direct     map[netip.AddrPort]bool
	lastDirect time.Time
	lastUnseen netip.Addr // [Status.LastPeer]
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
	p.addrs.seen(func(peer netip.AddrPort) bool { _, ok := classes[peer]; return ok })
}

// class returns the session's class in the last two samples, or empty if neither contained it.
func (p *peers) class(peer netip.AddrPort) activity.Class {
	if class, ok := p.classes[peer]; ok {
		return class
	}
	return p.previous[peer]
}

// judge judges an ended session, and returns when it was used; zero if it does not count.
func (p *peers) judge(ended activity.Ended) time.Time {
	around := p.surroundings(ended.Peer)
	verdict := activity.Judge(ended, around)
	p.ended(ended, around)
	p.observer.Judged(verdict)
	if verdict == activity.VerdictUnseen {
		p.lastUnseen = around.Client
	}
	if !verdict.Used() {
		return time.Time{}
	}
	return ended.At
}

// lost records that reports of the kernel were lost.
func (p *peers) lost(now time.Time) {
	p.addrs.reportsLost()
	p.observer.Judged(activity.VerdictLost)
	p.noteDirect(now)
}

// ended records the end of a session, and forgets it: another client may reuse its port. If the session was found open
// before, whether it was direct was judged then, because the gateway's announcement may have been removed meanwhile.
func (p *peers) ended(session activity.Ended, around activity.Surroundings) {
	direct, seen := p.direct[session.Peer]
	if direct || !seen && p.isDirect(session.Peer, session.Received, around) {
		p.noteDirect(session.At)
	}
	delete(p.direct, session.Peer)
	delete(p.classes, session.Peer)
	delete(p.previous, session.Peer)
	p.addrs.ended(session.Peer)
}

// surroundings returns the context in which a TCP session is judged.
func (p *peers) surroundings(peer netip.AddrPort) activity.Surroundings {
	return activity.Surroundings{
		Class: p.class(peer), Probe: p.addrs.isReportedProbe(peer), Client: p.addrs.ClientAddr(peer).Addr(),
		Instances: p.instanceAddresses(time.Now()), Ignore: p.ignore,
	}
}

// connecting reports whether a TCP session is open that is not in the sample: its client is logging in, or its process
// has ended and the kernel has not reported it yet. The next sample or that report will tell which.
func (p *peers) connecting(sample postgres.Sample, open []activity.Open) bool {
	found := sample.Tally.Peers()
	return slices.ContainsFunc(open, func(session activity.Open) bool {
		_, ok := found[session.Peer]
		return !ok && activity.JudgeOpen(session, p.surroundings(session.Peer)).Used()
	})
}
