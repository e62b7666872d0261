package activity

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

func TestRefused(t *testing.T) {
	t.Parallel()
	begun := time.Unix(1000, 0)
	session := func(from string, sent, received uint64, after time.Duration) Ended {
		return Ended{Peer: netip.AddrPortFrom(netip.MustParseAddr(from), uint16(after/time.Second)+1), Sent: sent, Received: received, At: begun.Add(after)}
	}
	twice := []Ended{session("10.0.0.3", 2014, 900, 0), session("10.0.0.3", 2016, 900, time.Second)}
	for _, row := range []struct {
		rule  string
		known []Ended
		of    Ended
		like  bool
	}{
		{"a session as long as two that were refused is like them", twice, session("10.0.0.3", 2012, 901, time.Minute), true},
		{"an address in the form of IPv6 is the same", twice, session("::ffff:10.0.0.3", 2014, 900, time.Minute), true},
		{"one is not enough", twice[:1], session("10.0.0.3", 2014, 900, time.Minute), false},
		{"a session from elsewhere is another", twice, session("10.0.0.4", 2014, 900, time.Minute), false},
		{"so is one that got more", twice, session("10.0.0.3", 2025, 900, time.Minute), false},
		{"and one that got less", twice, session("10.0.0.3", 2005, 900, time.Minute), false},
		{"and one that sent more", twice, session("10.0.0.3", 2014, 909, time.Minute), false},
		{"after ten minutes it means nothing", twice, session("10.0.0.3", 2014, 900, 11*time.Minute), false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			var refused Refused
			for _, ended := range row.known {
				refused.Remember(ended)
			}
			if like := refused.Like(row.of); like != row.like {
				t.Errorf("like: %t", like)
			}
		})
	}
}

func TestRefusedIsBounded(t *testing.T) {
	t.Parallel()
	var refused Refused
	for n := range 10 * refusedAtMost {
		refused.Remember(Ended{Peer: netip.MustParseAddrPort(fmt.Sprintf("10.0.%d.%d:1", n/256, n%256)), Sent: 2014, At: time.Unix(1000, 0)})
	}
	if len(refused.known) > refusedAtMost {
		t.Errorf("%d are kept", len(refused.known))
	}
}
