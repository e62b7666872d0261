package cluster

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func TestFamiliesThatThereAre(t *testing.T) {
	t.Parallel()
	for families, known := range map[Families]bool{"ipv4": true, "dual": true, "ipv6": false, "": false} {
		if err := families.Check(); (err == nil) != known {
			t.Errorf("%q: %v", families, err)
		}
	}
}

func TestEveryFamilyReachesEveryComponent(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule                          string
		families                      Families
		pods, nodePorts, services, ip string
		routes                        []string
	}{
		{
			"IPv4 alone is as ever", IPv4, "10.244.0.0/24", "10.99.0.1/32", "--service-cluster-ip-range=10.96.0.0/16", "--node-ip=10.99.0.1",
			[]string{"0.0.0.0/0"},
		},
		{
			"of both, IPv4 is the first", DualStack, "10.244.0.0/24,fd73:327a:e2e:244::/64", "10.99.0.1/32,fd73:327a:e2e:99::1/128",
			"--service-cluster-ip-range=10.96.0.0/16,fd73:327a:e2e:96::/112", "--node-ip=10.99.0.1,fd73:327a:e2e:99::1", []string{"0.0.0.0/0", "::/0"},
		},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			l := Layout{Run: filepath.Join(t.TempDir(), "run")}
			if err := l.configure(Options{ProxyMode: "iptables", Families: row.families}); err != nil {
				t.Fatal(err)
			}
			var proxy struct {
				ClusterCIDR       string
				NodePortAddresses []string
			}
			if err := yaml.Unmarshal(must(os.ReadFile(l.run("proxy.yaml")))(t), &proxy); err != nil {
				t.Fatal(err)
			}
			var network struct {
				Plugins []struct {
					IPAM struct {
						Ranges [][]struct{ Subnet string }
						Routes []struct{ Dst string }
					}
				}
			}
			if err := json.Unmarshal(must(os.ReadFile(l.run("cni", "10-pods.conflist")))(t), &network); err != nil {
				t.Fatal(err)
			}
			var ranges, routes []string
			for _, of := range network.Plugins[0].IPAM.Ranges { // a range of its own each: a pod gets an address of every one
				ranges = append(ranges, of[0].Subnet)
			}
			for _, route := range network.Plugins[0].IPAM.Routes {
				routes = append(routes, route.Dst)
			}
			got := []string{proxy.ClusterCIDR, strings.Join(ranges, ","), strings.Join(proxy.NodePortAddresses, ",")}
			if diff := cmp.Diff([]string{row.pods, row.pods, row.nodePorts}, got); diff != "" {
				t.Errorf("kube-proxy's pods, CNI's, and the addresses of node ports (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(row.routes, routes); diff != "" {
				t.Errorf("routes (-want +got):\n%s", diff)
			}
			var arguments []string
			for _, c := range append(l.independent(row.families), l.controlled("node", row.families)...) {
				arguments = append(arguments, c.arguments...)
			}
			for _, want := range []string{row.services, row.ip} {
				if !slices.Contains(arguments, want) {
					t.Errorf("no component has %s", want)
				}
			}
		})
	}
}

func TestTheAddressesOfAFamilyFitTogether(t *testing.T) {
	t.Parallel()
	for _, a := range DualStack.all() {
		node, link := netip.MustParseAddr(a.node), netip.MustParsePrefix(a.link)
		pods, services := netip.MustParsePrefix(a.pods), netip.MustParsePrefix(a.services)
		if link.Addr() != node || netip.MustParsePrefix(a.host) != netip.PrefixFrom(node, node.BitLen()) {
			t.Errorf("%s is not the address of %s and %s", node, link, a.host)
		}
		if link.Overlaps(pods) || pods.Overlaps(services) || services.Overlaps(link) {
			t.Errorf("%s, %s and %s overlap", link, pods, services)
		}
		if ipv6 := node.Is6(); ipv6 != (a.option == "-6") || ipv6 && !node.IsPrivate() {
			t.Errorf("%s is of the wrong kind", node)
		}
	}
}

func TestWhetherTheMachineHasIPv6(t *testing.T) {
	t.Parallel()
	const interfaces, all, usual = "net/if_inet6", "sys/net/ipv6/conf/all/disable_ipv6", "sys/net/ipv6/conf/default/disable_ipv6"
	for _, row := range []struct {
		rule  string
		files map[string]string
		want  string // of the error; empty: none
	}{
		{"it has", map[string]string{interfaces: "", all: "0\n", usual: "0\n"}, ""},
		{"a kernel may be without it", nil, "the kernel is without it"},
		{"it may be off", map[string]string{interfaces: "", all: "1\n", usual: "0\n"}, "net.ipv6.conf.all.disable_ipv6 must be 0"},
		{"or off for what pods are given", map[string]string{interfaces: "", all: "0\n", usual: "1\n"}, "net.ipv6.conf.default.disable_ipv6 must be 0"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			proc := t.TempDir()
			for name, content := range row.files {
				if err := writeFile(filepath.Join(proc, name), content); err != nil {
					t.Fatal(err)
				}
			}
			err := checkIPv6(proc)
			if row.want == "" && err != nil || row.want != "" && (!errors.Is(err, errNoIPv6) || !strings.Contains(err.Error(), row.want)) {
				t.Errorf("got %v, want %q", err, row.want)
			}
		})
	}
}
