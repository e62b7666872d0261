package introduction

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		body string
		want netip.AddrPort
	}{
		"a client over IPv4": {`{"version":1,"port":40000,"peer":"192.0.2.7:5000"}`, netip.MustParseAddrPort("192.0.2.7:5000")},
		"a client over IPv6": {`{"version":1,"port":40000,"peer":"[2001:db8::7]:5000"}`, netip.MustParseAddrPort("[2001:db8::7]:5000")},
		"an IPv4 client of an IPv6 socket is an IPv4 client": {`{"version":1,"port":1,"peer":"[::ffff:192.0.2.7]:5000"}`, netip.MustParseAddrPort("192.0.2.7:5000")},
		"a newer field is passed over":                       {`{"version":1,"port":1,"peer":"192.0.2.7:5000","more":true}`, netip.MustParseAddrPort("192.0.2.7:5000")},
		"another version is refused":                         {`{"version":2,"port":40000,"peer":"192.0.2.7:5000"}`, netip.AddrPort{}},
		"without a port it is refused":                       {`{"version":1,"peer":"192.0.2.7:5000"}`, netip.AddrPort{}},
		"a port that is none is refused":                     {`{"version":1,"port":70000,"peer":"192.0.2.7:5000"}`, netip.AddrPort{}},
		"without a client it is refused":                     {`{"version":1,"port":1}`, netip.AddrPort{}},
		"a name is not an address":                           {`{"version":1,"port":1,"peer":"host:5000"}`, netip.AddrPort{}},
		"what is no JSON is refused":                         {`peer`, netip.AddrPort{}},
		"what is too long is refused":                        {`{"version":1,"port":1,"peer":"192.0.2.7:5000"}` + strings.Repeat(" ", MaximumBody), netip.AddrPort{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i, err := Parse([]byte(row.body))
			if i.Peer != row.want || (err == nil) != row.want.IsValid() || err != nil && !errors.Is(err, ErrInvalid) {
				t.Errorf("%v (%v), want %v", i.Peer, err, row.want)
			}
		})
	}
}

func TestBook(t *testing.T) {
	t.Parallel()
	gateway, client := netip.MustParseAddrPort("10.0.0.9:40000"), netip.MustParseAddrPort("192.0.2.7:5000")
	gone, here := func(netip.AddrPort) bool { return false }, func(netip.AddrPort) bool { return true }
	for name, row := range map[string]struct {
		then       func(*Book)
		introduced bool
	}{
		"an introduced connection is the client's":                 {func(*Book) {}, true},
		"one that has ended is not":                                {func(b *Book) { b.Ended(gateway) }, false},
		"a look before it comes changes nothing":                   {func(b *Book) { b.Seen(gone) }, true},
		"one that a look has seen, and the next has not, has gone": {func(b *Book) { b.Seen(here); b.Seen(gone) }, false},
		"one that stays is kept":                                   {func(b *Book) { b.Seen(here); time.Sleep(time.Hour); b.Seen(here) }, true},
		"one that never comes is forgotten":                        {func(b *Book) { time.Sleep(2 * time.Minute); b.Seen(gone) }, false},
		"a flood drives nobody out": {func(b *Book) {
			for port := range 2 * maximumKept {
				b.Add(netip.MustParseAddr("10.0.0.66"), Introduction{Port: uint16(port + 1), Peer: client})
			}
			if len(b.entries) > maximumKept {
				panic(fmt.Sprintf("%d kept", len(b.entries)))
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := NewBook()
				b.Add(netip.MustParseAddr("::ffff:10.0.0.9"), Introduction{Port: 40000, Peer: client})
				row.then(b)
				want := map[bool]netip.AddrPort{true: client, false: gateway}[row.introduced]
				if behind := b.Behind(gateway); behind != want {
					t.Errorf("behind it is %v, want %v", behind, want)
				}
			})
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"version":1,"port":40000,"peer":"192.0.2.7:5000"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		i, err := Parse(body)
		if err == nil && (i.Port == 0 || !i.Peer.IsValid()) || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%v (%v)", i, err)
		}
	})
}
