package monitor

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestClientAddrs_mapsTheGatewaysConnections(t *testing.T) {
	t.Parallel()
	gateway, client := netip.MustParseAddrPort("10.0.0.9:40000"), netip.MustParseAddrPort("192.0.2.7:5000")
	gone, here := func(netip.AddrPort) bool { return false }, func(netip.AddrPort) bool { return true }
	for name, row := range map[string]struct {
		then  func(*ClientAddrs)
		named bool
	}{
		"a named connection is the client's":                         {func(*ClientAddrs) {}, true},
		"one that has ended is not":                                  {func(table *ClientAddrs) { table.ended(gateway) }, false},
		"a sample before it comes changes nothing":                   {func(table *ClientAddrs) { table.seen(gone) }, true},
		"one that a sample has seen, and the next has not, has gone": {func(table *ClientAddrs) { table.seen(here); table.seen(gone) }, false},
		"one that stays is kept":                                     {func(table *ClientAddrs) { table.seen(here); time.Sleep(time.Hour); table.seen(here) }, true},
		"one that never comes is forgotten":                          {func(table *ClientAddrs) { time.Sleep(2 * time.Minute); table.seen(gone) }, false},
		"a flood drives nobody out": {func(table *ClientAddrs) {
			for port := range 2 * maximumClientAddrs {
				table.Add(netip.MustParseAddr("10.0.0.66"), contract.ClientAddress{Port: uint16(port + 1), Peer: client})
			}
			if len(table.connections) > maximumClientAddrs {
				panic(fmt.Sprintf("%d kept", len(table.connections)))
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				table := NewClientAddrs()
				table.Add(netip.MustParseAddr("::ffff:10.0.0.9"), contract.ClientAddress{Port: 40000, Peer: client})
				row.then(table)
				want := map[bool]netip.AddrPort{true: client, false: gateway}[row.named]
				if client := table.ClientAddr(gateway); client != want {
					t.Errorf("its client is %v, want %v", client, want)
				}
			})
		})
	}
}

func TestClientAddrs_probe(t *testing.T) {
	t.Parallel()
	gateway := netip.MustParseAddrPort("10.0.0.9:40000")
	table := NewClientAddrs()
	if table.isProbe(gateway) {
		t.Error("a connection that nobody named is a probe")
	}
	table.Add(gateway.Addr(), contract.ClientAddress{Port: gateway.Port(), Peer: gateway, Probe: true})
	if !table.isProbe(gateway) {
		t.Error("the gateway's probe is not known")
	}
}

func TestClientAddrs_ownProbesAreKnownUntilTheyHaveEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		local := netip.MustParseAddrPort("127.0.0.1:40000")
		here := func(netip.AddrPort) bool { return true }
		table := NewClientAddrs()
		for port := range maximumClientAddrs { // others' announcements do not use up its space
			table.Add(netip.MustParseAddr("10.0.0.66"), contract.ClientAddress{Port: uint16(port + 1), Peer: local})
		}
		closed := table.AddProbe(local)
		table.seen(here)
		if time.Sleep(time.Hour); !table.isProbe(local) {
			t.Error("a probe that a slow server has not answered yet is not known")
		}
		closed()
		if time.Sleep(unreportedProbeLifetime - 1); !table.isProbe(local) {
			t.Error("a probe whose end has not been reported yet is not known")
		}
		if table.ended(local); table.isProbe(local) {
			t.Error("a probe that has ended is known")
		}
		if closed(); table.isProbe(local) {
			t.Error("a probe that ended before it was closed is known")
		}
		table.AddProbe(local)()
		table.seen(here)
		if time.Sleep(unreportedProbeLifetime); table.isProbe(local) {
			t.Error("a session that goes on is taken for a probe")
		}
		if table.seen(func(netip.AddrPort) bool { return false }); table.isReportedProbe(local) {
			t.Error("a probe that a sample found, and the next one did not, is known")
		}
	})
}

// PostgreSQL may be starved for longer than a probe waits: the end of a probe is reported whenever its process has run.
func TestClientAddrs_ownProbesAreKnownWhenTheirEndIsReportedLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		local := netip.MustParseAddrPort("127.0.0.1:40000")
		absent := func(netip.AddrPort) bool { return false }
		table := NewClientAddrs()
		table.AddProbe(local)()
		time.Sleep(unreportedProbeLifetime + reportedProbeLifetime - 1)
		if table.seen(absent); !table.isReportedProbe(local) {
			t.Error("a probe whose end is reported late is taken for a client")
		}
		time.Sleep(time.Nanosecond)
		if table.seen(absent); table.isReportedProbe(local) {
			t.Error("a probe whose end is never reported is kept")
		}
		table.AddProbe(local)()
		if table.reportsLost(); !table.isReportedProbe(local) {
			t.Error("a probe that has just been closed when reports are lost is taken for a client")
		}
		if time.Sleep(unreportedProbeLifetime); table.isReportedProbe(local) {
			t.Error("another client with the port of a probe, whose end may have been lost, is taken for it")
		}
		table.AddProbe(local)
		if table.reportsLost(); !table.isReportedProbe(local) {
			t.Error("a probe that goes on while reports are lost is taken for a client")
		}
	})
}

// A session that a sample has found, or whose end was reported, has been judged there. Any other may have been a use.
func TestClientAddrs_missesASessionThatNobodyHasJudged(t *testing.T) {
	t.Parallel()
	gateway, client := netip.MustParseAddrPort("10.0.0.9:40000"), netip.MustParseAddrPort("192.0.2.7:5000")
	gone, here := func(netip.AddrPort) bool { return false }, func(netip.AddrPort) bool { return true }
	for _, row := range []struct {
		rule  string
		probe bool
		then  func(*ClientAddrs)
		// missed or still awaited
		missed, awaited bool
	}{
		{"one that may still begin is awaited", false, func(*ClientAddrs) {}, false, true},
		{"not one that a sample has found", false, func(table *ClientAddrs) { table.seen(here) }, false, false},
		{"not once it has gone either", false, func(table *ClientAddrs) { table.seen(here); table.seen(gone) }, false, false},
		{"not one whose end was reported", false, func(table *ClientAddrs) { table.ended(gateway) }, false, false},
		{"one that ended before a sample, or never came", false, func(table *ClientAddrs) { time.Sleep(2 * announcementLifetime); table.seen(gone) }, true, false},
		{"not one for a server that has restarted since", false, func(table *ClientAddrs) { table.restarted(time.Now().Add(time.Second)) }, false, false},
		{"nor one that was missed before", false, func(table *ClientAddrs) {
			time.Sleep(2 * announcementLifetime)
			table.seen(gone)
			table.restarted(time.Now())
		}, false, false},
		{"but one that was announced since", false, func(table *ClientAddrs) { table.restarted(time.Now().Add(-time.Second)) }, false, true},
		{"not a probe", true, func(table *ClientAddrs) { table.seen(gone) }, false, false},
		{"one for which there was no room", true, func(table *ClientAddrs) {
			for port := range maximumClientAddrs + 1 {
				table.Add(gateway.Addr(), contract.ClientAddress{Port: uint16(port), Peer: client})
			}
			table.seen(here)
		}, true, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				table := NewClientAddrs()
				table.Add(gateway.Addr(), contract.ClientAddress{Port: gateway.Port(), Peer: client, Probe: row.probe})
				row.then(table)
				if missed, awaited := table.sessionMissed(), table.sessionAwaited(); missed != row.missed || awaited != row.awaited {
					t.Errorf("missed %t, awaited %t", missed, awaited)
				}
			})
		})
	}
}
