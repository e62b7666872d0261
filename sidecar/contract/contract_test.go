package contract

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func FuzzParseAnnouncement(f *testing.F) {
	now := time.Date(2026, 3, 1, 18, 0, 0, 0, time.UTC)
	f.Add("uid 2026-03-01T18:00:00.5Z")
	f.Add(" ")
	f.Fuzz(func(t *testing.T, value string) {
		announced, err := ParseAnnouncement(value)
		if err != nil {
			if !errors.Is(err, ErrInvalidAnnouncement) {
				t.Errorf("the error is not classified: %v", err)
			}
			return
		}
		if valid, change := announced.Valid(now); valid && (change.Sub(now) > AnnouncementLifetime || !change.After(now)) {
			t.Errorf("%q counts until %s", value, change)
		}
		if announced.PodUID == "" {
			t.Errorf("%q is of nobody", value)
		}
		again, err := ParseAnnouncement(announced.String())
		if err != nil || again.PodUID != announced.PodUID || !again.Deadline.Equal(announced.Deadline) {
			t.Errorf("%q is written as %q, which reads as %v, %v", value, announced, again, err)
		}
	})
}

func FuzzDecodeReport(f *testing.F) {
	body, err := EncodeReport(Report{Cluster: "c", Pod: "c-1", Known: true, Reason: "idle"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		report, err := DecodeReport(body)
		if err != nil && !errors.Is(err, ErrInvalidReport) {
			t.Errorf("the error is not classified: %v", err)
		}
		if err == nil && report.Version != ReportVersion {
			t.Errorf("version %d was taken", report.Version)
		}
	})
}

func TestDecodeClientAddress_refusesWhatCannotBeUsed(t *testing.T) {
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
		"what is too long is refused":                        {`{"version":1,"port":1,"peer":"192.0.2.7:5000"}` + strings.Repeat(" ", MaxClientAddressBytes), netip.AddrPort{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, err := DecodeClientAddress([]byte(row.body))
			if a.Peer != row.want || (err == nil) != row.want.IsValid() || err != nil && !errors.Is(err, ErrInvalidClientAddress) {
				t.Errorf("%v (%v), want %v", a.Peer, err, row.want)
			}
		})
	}
}

func FuzzDecodeClientAddress(f *testing.F) {
	f.Add([]byte(`{"version":1,"port":40000,"peer":"192.0.2.7:5000"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := DecodeClientAddress(body)
		if err == nil && (a.Port == 0 || !a.Peer.IsValid()) || err != nil && !errors.Is(err, ErrInvalidClientAddress) {
			t.Errorf("%v (%v)", a, err)
		}
	})
}
