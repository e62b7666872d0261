package monitor

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// isDirect reports whether a TCP session came neither from the gateway nor from an instance, nor is a probe. The gateway announces
// a session before its first byte, so nothing can be told of one that has sent less than a startup packet; the kernel's filter drops
// its end too.
func (m *Monitor) isDirect(peer netip.AddrPort, received uint64, around activity.Surroundings) bool {
	address := peer.Addr().Unmap()
	instance := slices.Contains(around.Instances, address) && !address.IsLoopback()
	return received >= uint64(contract.MinStartupPacketBytes) && !instance && !m.parts.ClientAddrs.Known(peer)
}

// sawOpen takes in the sessions that are open. One that was open before is not noticed anew.
func (m *Monitor) sawOpen(open []activity.Open) {
	all := make(map[netip.AddrPort]bool, len(open))
	for _, session := range open {
		if session.Received < uint64(contract.MinStartupPacketBytes) {
			continue
		}
		direct, seen := m.direct[session.Peer]
		if !seen {
			if direct = m.isDirect(session.Peer, session.Received, m.surroundings(session.Peer)); direct {
				m.noticeDirect(time.Now())
			}
		}
		all[session.Peer] = direct
	}
	m.direct = all
}

// sawEnd takes in the end of a session. What was told of it while it was open holds: the gateway's announcement may be gone.
func (m *Monitor) sawEnd(ended activity.Ended, around activity.Surroundings) {
	direct, seen := m.direct[ended.Peer]
	if !seen {
		direct = m.isDirect(ended.Peer, ended.Received, around)
	}
	if direct {
		m.noticeDirect(ended.At)
	}
	delete(m.direct, ended.Peer)
}

// noticeDirect records that there was a direct session, or may have been.
func (m *Monitor) noticeDirect(at time.Time) { m.status.LastDirect = later(m.status.LastDirect, at) }
