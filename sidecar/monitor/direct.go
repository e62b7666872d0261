package monitor

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// isDirect reports whether a TCP session is neither the gateway's, nor an instance's, nor a probe. A session that has
// sent less than a startup packet is not judged, because the gateway announces a session only before its first byte.
// The kernel's filter drops the ends of such sessions too.
func (p *peers) isDirect(peer netip.AddrPort, received uint64, around activity.Surroundings) bool {
	address := peer.Addr().Unmap()
	instance := slices.Contains(around.Instances, address) && !address.IsLoopback()
	return received >= uint64(contract.MinStartupPacketBytes) && !instance && !p.addrs.known(peer)
}

// opened records the open sessions. A direct session counts only the first time that it is found.
func (p *peers) opened(open []activity.Open) {
	all := make(map[netip.AddrPort]bool, len(open))
	for _, session := range open {
		if session.Received < uint64(contract.MinStartupPacketBytes) {
			continue
		}
		direct, seen := p.direct[session.Peer]
		if !seen {
			if direct = p.isDirect(session.Peer, session.Received, p.surroundings(session.Peer)); direct {
				p.noteDirect(time.Now())
			}
		}
		all[session.Peer] = direct
	}
	p.direct = all
}

// noteDirect records that there was a direct session, or may have been.
func (p *peers) noteDirect(at time.Time) { p.lastDirect = later(p.lastDirect, at) }
