package monitor

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

func TestJudge_knowsTheLastTwoSamples(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule    string
		samples int // samples without the session, after the one that contained it
		want    activity.Verdict
	}{
		{"a session that the newest sample found", 0, activity.VerdictInfrastructure},
		{"a session that the sample before found", 1, activity.VerdictInfrastructure},
		{"a session that an older sample found", 2, activity.VerdictUnseen},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, i *instance, m *Monitor) {
				ended := client(time.Now())
				i.sample.Tally.Add(activity.Session{
					BackendType: "client backend", User: "monitoring", Peer: ended.Peer,
				}, activity.Rules{Ignore: []idle.Pattern{{User: "monitoring"}}})
				_, _ = m.Sample(t.Context())
				i.sample.Tally = activity.Tally{}
				for range row.samples {
					_, _ = m.Sample(t.Context())
				}
				i.report(nil, ended)
				handleAll(m)
				if got := i.verdicts[len(i.verdicts)-1]; got != row.want {
					t.Errorf("got %s, want %s", got, row.want)
				}
				i.report(nil, ended) // another session from the same port
				handleAll(m)
				if got := i.verdicts[len(i.verdicts)-1]; got != activity.VerdictUnseen {
					t.Errorf("the next session from that port is %s", got)
				}
			})
		})
	}
}

func TestJudge_knowsInstancesForAMinute(t *testing.T) {
	t.Parallel()
	other := netip.MustParseAddr("10.0.0.9") // the client's address
	for _, row := range []struct {
		rule string
		then func(*Monitor)
		want activity.Verdict
	}{
		{"an instance that is there", func(*Monitor) { time.Sleep(time.Hour) }, activity.VerdictInstance},
		{"an instance that has just gone", func(m *Monitor) { m.Configure(permitted) }, activity.VerdictInstance},
		{"an instance that went a minute ago", func(m *Monitor) { m.Configure(permitted); time.Sleep(instanceLasts + 1) }, activity.VerdictUnseen},
		{"an instance that came back", func(m *Monitor) {
			m.Configure(permitted)
			time.Sleep(time.Hour)
			m.Configure(Settings{Connect: true, Others: []netip.Addr{other}})
		}, activity.VerdictInstance},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, i *instance, m *Monitor) {
				m.Configure(Settings{Connect: true, Others: []netip.Addr{other}})
				_, _ = m.Sample(t.Context())
				row.then(m)
				i.report(nil, client(time.Now()))
				handleAll(m)
				if got := i.verdicts[0]; got != row.want {
					t.Errorf("got %s, want %s", got, row.want)
				}
			})
		})
	}
}

func TestJudge_knowsProbesAndClientsBehindTheGateway(t *testing.T) {
	t.Parallel()
	peer := client(time.Now()).Peer
	ignored := netip.MustParseAddrPort("10.9.0.1:5000")
	for _, row := range []struct {
		rule string
		add  func(*instance)
		want activity.Verdict
	}{
		{"a session of its peer's own counts", func(*instance) {}, activity.VerdictUnseen},
		{"a probe of this sidecar's does not", func(i *instance) { i.addrs.AddProbe(peer) }, activity.VerdictProbe},
		{"a probe of the gateway's does not", func(i *instance) {
			i.addrs.Add(peer.Addr(), contract.ClientAddress{Port: peer.Port(), Peer: peer, Probe: true})
		}, activity.VerdictProbe},
		{"a client behind the gateway is ignored by its own address", func(i *instance) {
			i.addrs.Add(peer.Addr(), contract.ClientAddress{Port: peer.Port(), Peer: ignored})
		}, activity.VerdictIgnored},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, i *instance, m *Monitor) {
				settings := permitted
				settings.Rules.Ignore = []idle.Pattern{{Client: netip.MustParsePrefix("10.9.0.0/16")}}
				m.Configure(settings)
				_, _ = m.Sample(t.Context())
				row.add(i)
				i.report(nil, client(time.Now()))
				change := handleAll(m)
				if got := i.verdicts[0]; got != row.want || change.Used.IsZero() == row.want.Used() {
					t.Errorf("got %s, want %s; %+v", got, row.want, change)
				}
				if i.addrs.isProbe(peer) || i.addrs.ClientAddr(peer) != peer {
					t.Error("the connection is known after its end")
				}
			})
		})
	}
}
