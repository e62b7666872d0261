package monitor

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// isDirect reports whether a TCP session is neither the gateway's, nor an instance's, nor a probe. A session that has sent less than
// a startup packet is not judged, since the gateway announces a session only before its first byte. The kernel's filter drops the
// ends of such sessions too.
func (m *Monitor) isDirect(peer netip.AddrPort, received uint64, around activity.Surroundings) bool {
	address := peer.Addr().Unmap()
	instance := slices.Contains(around.Instances, address) && !address.IsLoopback()
	return received >= uint64(contract.MinStartupPacketBytes) && !instance && !m.parts.ClientAddrs.known(peer)
}

// noteOpen records the open sessions. A direct session sets LastDirect only the first time that it is found.
func (m *Monitor) noteOpen(open []activity.Open) {
	all := make(map[netip.AddrPort]bool, len(open))
	for _, session := range open {
		if session.Received < uint64(contract.MinStartupPacketBytes) {
			continue
		}
		direct, seen := m.direct[session.Peer]
		if !seen {
			if direct = m.isDirect(session.Peer, session.Received, m.surroundings(session.Peer)); direct {
				m.noteDirect(time.Now())
			}
		}
		all[session.Peer] = direct
	}
	m.direct = all
}

// noteEnd records the end of a session. If the session was found open before, that judgement holds, since the gateway's announcement
// may have been removed meanwhile.
func (m *Monitor) noteEnd(ended activity.Ended, around activity.Surroundings) {
	direct, seen := m.direct[ended.Peer]
	if !seen {
		direct = m.isDirect(ended.Peer, ended.Received, around)
	}
	if direct {
		m.noteDirect(ended.At)
	}
	delete(m.direct, ended.Peer)
}

// noteDirect records that there was a direct session, or may have been.
func (m *Monitor) noteDirect(at time.Time) { m.status.LastDirect = later(m.status.LastDirect, at) }
