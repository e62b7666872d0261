package monitor

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/sockets"
)

func TestLastDirect_isOfSessionsThatTheGatewayDidNotBegin(t *testing.T) {
	t.Parallel()
	peer := client(time.Now()).Peer
	open := func(peer netip.AddrPort, received uint64) func(*instance, *Monitor) {
		return func(i *instance, _ *Monitor) { i.open = []activity.Open{{Peer: peer, Received: received}} }
	}
	announce := func(i *instance, _ *Monitor) {
		i.addrs.Add(peer.Addr(), contract.ClientAddress{Port: peer.Port(), Peer: netip.MustParseAddrPort("10.9.0.1:5000")})
	}
	end := func(i *instance, m *Monitor) { i.report(nil, client(time.Now())); handleAll(m) }
	sample := func(_ *instance, m *Monitor) { _, _ = m.Sample(t.Context()) }
	pause := func(*instance, *Monitor) { time.Sleep(10 * time.Second) }
	for _, row := range []struct {
		rule    string
		do      []func(*instance, *Monitor)
		noticed bool // whether one is noticed by the last step
	}{
		{"nobody comes", []func(*instance, *Monitor){pause, sample}, false},
		{"a session that has ended", []func(*instance, *Monitor){pause, end}, true},
		{"a session that is open", []func(*instance, *Monitor){open(peer, 700), pause, sample}, true},
		{"one that is still open is not noticed anew", []func(*instance, *Monitor){open(peer, 700), sample, pause, sample}, false},
		{"its end is", []func(*instance, *Monitor){open(peer, 700), sample, pause, end}, true},
		{"one that has sent too little is not told yet", []func(*instance, *Monitor){open(peer, 1), pause, sample}, false},
		{"then it is", []func(*instance, *Monitor){open(peer, 1), sample, open(peer, 700), pause, sample}, true},
		{"a session of the gateway's that has ended", []func(*instance, *Monitor){announce, pause, end}, false},
		{"a session of the gateway's that is open", []func(*instance, *Monitor){announce, open(peer, 700), pause, sample}, false},
		{"it stays the gateway's when its announcement is forgotten", []func(*instance, *Monitor){
			announce, open(peer, 700), sample, func(i *instance, _ *Monitor) { i.addrs.ended(peer) }, pause, sample, pause, end,
		}, false},
		{"the next from its port is told anew", []func(*instance, *Monitor){announce, open(peer, 700), sample, end, pause, sample}, true},
		{"a session of an instance", []func(*instance, *Monitor){
			func(_ *instance, m *Monitor) { m.Configure(Settings{Connect: true, Others: []netip.Addr{peer.Addr()}}) }, pause, end,
		}, false},
		{"a probe of this sidecar's", []func(*instance, *Monitor){
			func(i *instance, _ *Monitor) { i.addrs.AddProbe(peer) }, pause, end,
		}, false},
		{"a session that an annotation excludes", []func(*instance, *Monitor){
			func(_ *instance, m *Monitor) {
				m.Configure(Settings{Connect: true, Rules: activity.Rules{Ignore: []idle.Pattern{{Client: netip.PrefixFrom(peer.Addr(), 32)}}}})
			}, pause, end,
		}, true},
		{"reports that were lost", []func(*instance, *Monitor){pause, func(i *instance, m *Monitor) { i.report(sockets.ErrLost); handleAll(m) }}, true},
		{"a time without reports", []func(*instance, *Monitor){
			func(i *instance, m *Monitor) { i.report(errFake); handleAll(m) }, pause, sample,
		}, true},
		{"a storm that pauses the reports", []func(*instance, *Monitor){pause, announce, end, announce, end}, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, i *instance, m *Monitor) {
				sample(i, m) // watches from now on
				if begun := m.Status(); !begun.Reported || !begun.LastDirect.Equal(time.Now()) {
					t.Errorf("at first: reported %t, direct %s ago", begun.Reported, time.Since(begun.LastDirect))
				}
				time.Sleep(time.Second)
				for _, do := range row.do {
					do(i, m)
				}
				if got := m.Status().LastDirect.Equal(time.Now()); got != row.noticed {
					t.Errorf("noticed %s ago, want now: %t", time.Since(m.Status().LastDirect), row.noticed)
				}
			})
		})
	}
}
