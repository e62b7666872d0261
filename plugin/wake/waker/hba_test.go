package waker

import (
	"net/netip"
	"strings"
	"testing"
)

var hbaClient, hbaGateway = netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("198.51.100.9")

func TestTellApart(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule  string
		lines []string
		apart bool
	}{
		{"no rules tell nothing apart", nil, false},
		{"a rule for all does not", []string{"host all all all scram-sha-256"}, false},
		{"all of IPv4 and IPv6 does not", []string{"hostssl all all 0.0.0.0/0 cert", "hostssl all all ::/0 cert"}, false},
		{"all of IPv4 with a mask does not", []string{"host all all 0.0.0.0 0.0.0.0 md5"}, false},
		{"the loopback is nobody's who comes over the network", []string{"host all all 127.0.0.1/32 trust", "host all all 127.0.0.1 255.255.255.255 trust"}, false},
		{"the Unix socket has no addresses", []string{"local all all peer map=local"}, false},
		{"comments and empty lines are no rules", []string{"", "   ", "# host all all 192.0.2.0/24 trust", "host all all all md5 # 192.0.2.0/24"}, false},
		{"a range with the client only does", []string{"host all all 192.0.2.0/24 scram-sha-256"}, true},
		{"one with the gateway only does", []string{"host all all 198.51.100.0/24 scram-sha-256"}, true},
		{"one with both does not", []string{"host all all 192.0.0.0/2 scram-sha-256"}, false},
		{"nor does one with neither", []string{"host all all 203.0.113.0/24 reject"}, false},
		{"nor does one of the other family", []string{"host all all 2001:db8::/32 reject"}, false},
		{"nor does one with both by its mask", []string{"host all all 192.0.0.0 192.0.0.0 md5"}, false},
		{"a mask with gaps may tell them apart", []string{"host all all 203.0.113.0 255.0.255.0 md5"}, true},
		{"a mask of the other family may tell them apart", []string{"host all all 203.0.113.0 ffff:: md5"}, true},
		{"a single address without a mask may tell them apart", []string{"host all all 203.0.113.0 md5"}, true},
		{"a single address with a mask does", []string{"host all all 192.0.2.7 255.255.255.255 md5"}, true},
		{"a host name does", []string{"hostnossl all all .example.org md5"}, true},
		{"samehost and samenet do", []string{"host all all samenet trust"}, true},
		{"pods that are selected do", []string{"host all all ${podselector:app} md5"}, true},
		{"a rejection by address does", []string{"host all all all md5", "host all all 192.0.2.0/24 reject"}, true},
		{"GSS encryption does: a client has it with PostgreSQL only", []string{"hostgssenc all all all gss"}, true},
		{"so does its absence", []string{"hostnogssenc all all all md5"}, true},
		{"a list with spaces is one field", []string{"host app, other all all scram-sha-256"}, false},
		{"a list with spaces hides no address", []string{"host app, other all 192.0.2.0/24 scram-sha-256"}, true},
		{"names in quotes may have spaces", []string{`host "my db" "all people" all md5`}, false},
		{"a quoted keyword is a host name", []string{`host all all "all" md5`}, true},
		{"tabs separate", []string{"host\tall\tall\tall\tmd5"}, false},
		{"a line that is not understood may tell them apart", []string{"host all all"}, true},
		{"an included file may tell them apart", []string{"include other.conf"}, true},
		{"several lines in one text are all read", []string{"host all all all md5\nhost all all 192.0.2.0/24 trust"}, true},
		{"a line that goes on may tell them apart", []string{"host all all \\\n 192.0.2.0/24 trust"}, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got := tellApart(row.lines, hbaClient, hbaGateway); got != row.apart {
				t.Errorf("got %t, want %t", got, row.apart)
			}
		})
	}
}

// An address must never be overlooked, however the rest of the line is written.
func FuzzTellApart(f *testing.F) {
	f.Add("all", "all", "md5")
	f.Add("a, b", `"x y"`, "reject # no")
	f.Fuzz(func(t *testing.T, database, user, method string) {
		line := strings.Join([]string{"host", database, user, "192.0.2.0/24", method}, " ")
		words := hbaFields(line)
		if got := tellApart([]string{line}, hbaClient, hbaGateway); !got && (len(words) < 4 || words[3] == "192.0.2.0/24") {
			t.Errorf("%q is said to be for all addresses", line)
		}
	})
}
