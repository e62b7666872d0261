package clientaddr

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestTable_mapsTheGatewaysConnections(t *testing.T) {
	t.Parallel()
	gateway, client := netip.MustParseAddrPort("10.0.0.9:40000"), netip.MustParseAddrPort("192.0.2.7:5000")
	gone, here := func(netip.AddrPort) bool { return false }, func(netip.AddrPort) bool { return true }
	for name, row := range map[string]struct {
		then  func(*Table)
		named bool
	}{
		"a named connection is the client's":                         {func(*Table) {}, true},
		"one that has ended is not":                                  {func(table *Table) { table.Ended(gateway) }, false},
		"a sample before it comes changes nothing":                   {func(table *Table) { table.Seen(gone) }, true},
		"one that a sample has seen, and the next has not, has gone": {func(table *Table) { table.Seen(here); table.Seen(gone) }, false},
		"one that stays is kept":                                     {func(table *Table) { table.Seen(here); time.Sleep(time.Hour); table.Seen(here) }, true},
		"one that never comes is forgotten":                          {func(table *Table) { time.Sleep(2 * time.Minute); table.Seen(gone) }, false},
		"a flood drives nobody out": {func(table *Table) {
			for port := range 2 * maximumEntries {
				table.Add(netip.MustParseAddr("10.0.0.66"), contract.ClientAddress{Port: uint16(port + 1), Peer: client})
			}
			if len(table.entries) > maximumEntries {
				panic(fmt.Sprintf("%d kept", len(table.entries)))
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				table := NewTable()
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

func TestTable_probe(t *testing.T) {
	t.Parallel()
	gateway := netip.MustParseAddrPort("10.0.0.9:40000")
	table := NewTable()
	if table.Probe(gateway) {
		t.Error("a connection that nobody named is a probe")
	}
	table.Add(gateway.Addr(), contract.ClientAddress{Port: gateway.Port(), Peer: gateway, Probe: true})
	if !table.Probe(gateway) {
		t.Error("the gateway's probe is not known")
	}
}

func TestTable_ownProbesAreKnownUntilTheyHaveEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		local := netip.MustParseAddrPort("127.0.0.1:40000")
		here := func(netip.AddrPort) bool { return true }
		table := NewTable()
		for port := range maximumEntries { // others' announcements do not use up its space
			table.Add(netip.MustParseAddr("10.0.0.66"), contract.ClientAddress{Port: uint16(port + 1), Peer: local})
		}
		closed := table.AddProbe(local)
		table.Seen(here)
		if time.Sleep(time.Hour); !table.Probe(local) {
			t.Error("a probe that a slow server has not answered yet is not known")
		}
		closed()
		if time.Sleep(unreportedProbeLifetime - 1); !table.Probe(local) {
			t.Error("a probe whose end has not been reported yet is not known")
		}
		if table.Ended(local); table.Probe(local) {
			t.Error("a probe that has ended is known")
		}
		if closed(); table.Probe(local) {
			t.Error("a probe that ended before it was closed is known")
		}
		table.AddProbe(local)()
		table.Seen(here)
		if time.Sleep(unreportedProbeLifetime); table.Probe(local) {
			t.Error("a session that goes on is taken for a probe")
		}
		if table.Seen(func(netip.AddrPort) bool { return false }); table.ReportedProbe(local) {
			t.Error("a probe that a sample found, and the next one did not, is known")
		}
	})
}

// PostgreSQL may be starved for longer than a probe waits: the end of a probe is reported whenever its process has run.
func TestTable_ownProbesAreKnownWhenTheirEndIsReportedLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		local := netip.MustParseAddrPort("127.0.0.1:40000")
		absent := func(netip.AddrPort) bool { return false }
		table := NewTable()
		table.AddProbe(local)()
		time.Sleep(unreportedProbeLifetime + reportedProbeLifetime - 1)
		if table.Seen(absent); !table.ReportedProbe(local) {
			t.Error("a probe whose end is reported late is taken for a client")
		}
		time.Sleep(time.Nanosecond)
		if table.Seen(absent); table.ReportedProbe(local) {
			t.Error("a probe whose end is never reported is kept")
		}
		table.AddProbe(local)()
		if table.ReportsLost(); !table.ReportedProbe(local) {
			t.Error("a probe that has just been closed when reports are lost is taken for a client")
		}
		if time.Sleep(unreportedProbeLifetime); table.ReportedProbe(local) {
			t.Error("another client with the port of a probe, whose end may have been lost, is taken for it")
		}
		table.AddProbe(local)
		if table.ReportsLost(); !table.ReportedProbe(local) {
			t.Error("a probe that goes on while reports are lost is taken for a client")
		}
	})
}

// A session that a sample has found, or whose end was reported, has been judged there. Any other may have been a use.
func TestTable_missesASessionThatNobodyHasJudged(t *testing.T) {
	t.Parallel()
	gateway, client := netip.MustParseAddrPort("10.0.0.9:40000"), netip.MustParseAddrPort("192.0.2.7:5000")
	gone, here := func(netip.AddrPort) bool { return false }, func(netip.AddrPort) bool { return true }
	for _, row := range []struct {
		rule   string
		probe  bool
		then   func(*Table)
		missed bool
	}{
		{"one that nobody has seen yet", false, func(*Table) {}, true},
		{"not one that a sample has found", false, func(table *Table) { table.Seen(here) }, false},
		{"not once it has gone either", false, func(table *Table) { table.Seen(here); table.Seen(gone) }, false},
		{"not one whose end was reported", false, func(table *Table) { table.Ended(gateway) }, false},
		{"one that ended before a sample, or never came", false, func(table *Table) { time.Sleep(2 * announcementLifetime); table.Seen(gone) }, true},
		{"not a probe", true, func(table *Table) { table.Seen(gone) }, false},
		{"one for which there was no room", true, func(table *Table) {
			for port := range maximumEntries + 1 {
				table.Add(gateway.Addr(), contract.ClientAddress{Port: uint16(port), Peer: client})
			}
			table.Seen(here)
		}, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				table := NewTable()
				table.Add(gateway.Addr(), contract.ClientAddress{Port: gateway.Port(), Peer: client, Probe: row.probe})
				if row.then(table); table.SessionMissed() != row.missed {
					t.Errorf("missed: %t", !row.missed)
				}
			})
		})
	}
}
