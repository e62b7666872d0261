package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// addressing is what the cluster has of one family of addresses.
type addressing struct {
	// option is that of ip(8) for the family, forwarding the kernel's switch.
	option, forwarding string
	// node is the node's address, link the same with the length of its network, host with that of an address.
	node, link, host string
	// pods and services are ranges, and anywhere is every address.
	pods, services, anywhere string
}

var (
	ipv4 = addressing{
		option: "-4", forwarding: "/proc/sys/net/ipv4/ip_forward",
		node: nodeAddress, link: nodeAddress + "/24", host: nodeAddress + "/32",
		pods: "10.244.0.0/24", services: "10.96.0.0/16", anywhere: "0.0.0.0/0",
	}
	// The addresses of IPv6 are unique local ones (RFC 4193), of a prefix that no other network is likely to have.
	ipv6 = addressing{
		option: "-6", forwarding: "/proc/sys/net/ipv6/conf/all/forwarding",
		node: "fd73:327a:e2e:99::1", link: "fd73:327a:e2e:99::1/64", host: "fd73:327a:e2e:99::1/128",
		pods: "fd73:327a:e2e:244::/64", services: "fd73:327a:e2e:96::/112", anywhere: "::/0",
	}
)

// Families are those of addresses that a cluster has.
type Families string

// What there is. The components themselves talk over IPv4.
const (
	IPv4      Families = "ipv4"
	DualStack Families = "dual" // IPv4 first
)

// Check returns an error that names the known families if this is not one of them.
func (f Families) Check() error {
	if f != IPv4 && f != DualStack {
		return fmt.Errorf("IP family %q: it must be %s or %s", string(f), IPv4, DualStack)
	}
	return nil
}

// all are the families, the primary one first.
func (f Families) all() []addressing {
	if f == DualStack {
		return []addressing{ipv4, ipv6}
	}
	return []addressing{ipv4}
}

// list is something of each family, as the components and their files take it.
func (f Families) list(of func(addressing) string) string { return list(f.all(), of) }

func list(addresses []addressing, of func(addressing) string) string {
	var all []string
	for _, a := range addresses {
		all = append(all, of(a))
	}
	return strings.Join(all, ",")
}

// errNoIPv6 says that a cluster of both families cannot be made on this machine.
var errNoIPv6 = errors.New("this machine has no IPv6, which both families (-ip-family dual) need")

// checkIPv6 looks at what the kernel says of itself in proc.
func checkIPv6(proc string) error {
	if _, err := os.Stat(filepath.Join(proc, "net/if_inet6")); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: the kernel is without it", errNoIPv6)
	}
	var off []string
	for _, name := range []string{"all", "default"} { // the latter holds for what pods are given
		content, err := os.ReadFile(filepath.Join(proc, "sys/net/ipv6/conf", name, "disable_ipv6"))
		if err != nil {
			return fmt.Errorf("%w: %w", errNoIPv6, err)
		}
		if strings.TrimSpace(string(content)) != "0" {
			off = append(off, "net.ipv6.conf."+name+".disable_ipv6")
		}
	}
	if off != nil {
		return fmt.Errorf("%w: %s must be 0", errNoIPv6, strings.Join(off, " and "))
	}
	return nil
}
