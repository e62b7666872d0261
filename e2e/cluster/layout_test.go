package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFolders(t *testing.T) {
	for _, row := range []struct{ rule, cache, run, network, wantCache, wantRun string }{
		{"both may be chosen", "/a/cache", "/b/run", "", "/a/cache", "/b/run"},
		{"what runs is in the cache unless it is chosen", "/a/cache", "", "", "/a/cache", "/a/cache/run"},
		{"without a choice the user's cache directory is used", "", "", "", "/u/cnpg-i-scale-to-zero", "/u/cnpg-i-scale-to-zero/run"},
		{"each network has a cluster of its own", "/a/cache", "", "turns", "/a/cache", "/a/cache/runturns"},
		{"in the folder that was chosen, too", "/a/cache", "/b/run", "turns", "/a/cache", "/b/runturns"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Setenv("XDG_CACHE_HOME", "/u")
			t.Setenv("SCALE_TO_ZERO_CACHE", row.cache)
			t.Setenv("SCALE_TO_ZERO_RUN", row.run)
			t.Setenv("SCALE_TO_ZERO_NETWORK", row.network)
			l := must(DefaultLayout("."))(t)
			if other := l.beside("alone"); other.Run != strings.TrimSuffix(row.wantRun, row.network)+"alone" || other.beside(row.network) != l {
				t.Errorf("beside it there is %+v", other)
			}
			if l.Cache != row.wantCache || l.Run != row.wantRun || !filepath.IsAbs(l.Source) {
				t.Errorf("got %+v", l)
			}
		})
	}
}

func TestDefaultLayout_refusesANetworkThatIsNoName(t *testing.T) {
	for _, network := range []string{"../run", "a-b", "Turns", "elevenlongs"} {
		t.Setenv("SCALE_TO_ZERO_NETWORK", network)
		if _, err := DefaultLayout("."); err == nil || !strings.Contains(err.Error(), network) || !strings.Contains(err.Error(), "lower-case letters") {
			t.Errorf("%s: %v", network, err)
		}
	}
}

func TestACachedFileIsMadeAnewWhenWhatItIsMadeFromChanges(t *testing.T) {
	t.Parallel()
	source := filepath.Join(t.TempDir(), "go.sum")
	l := Layout{Cache: "/cache"}
	names := map[string]string{}
	for _, row := range []struct{ what, content, setting string }{
		{"first", "one", "-s"}, {"other content", "two", "-s"}, {"other settings", "one", "-w"},
	} {
		if err := writeFile(source, row.content); err != nil {
			t.Fatal(err)
		}
		name := must(l.keyed("etcd-3", []string{source}, row.setting))(t)
		if !strings.HasPrefix(name, "/cache/etcd-3-") {
			t.Errorf("%s: %s does not show what it is", row.what, name)
		}
		if other, taken := names[name]; taken {
			t.Errorf("%s has the name of %s", row.what, other)
		}
		names[name] = row.what
	}
}

func TestEveryPlaceholderOfTheConfigurationIsFilled(t *testing.T) {
	t.Parallel()
	for _, families := range []Families{IPv4, DualStack} {
		l := Layout{Run: filepath.Join(t.TempDir(), "run")}
		if err := l.configure(Options{ProxyMode: "nftables", Families: families}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"containerd.toml", "cni/10-pods.conflist", "kubelet.yaml", "proxy.yaml", "Corefile", "base.yaml"} {
			content := must(os.ReadFile(l.run(name)))(t)
			if strings.Contains(string(content), "@") {
				t.Errorf("%s has a placeholder left:\n%s", name, content)
			}
		}
		if proxy := must(os.ReadFile(l.run("proxy.yaml")))(t); !strings.Contains(string(proxy), "mode: nftables\n") {
			t.Errorf("kube-proxy is not in the mode that was asked for:\n%s", proxy)
		}
	}
}

func TestSecondNode_hasNothingOfTheFirst(t *testing.T) {
	t.Parallel()
	l := Layout{Run: filepath.Join(t.TempDir(), "run"), Network: "turns"}
	if err := errors.Join(l.configure(Options{ProxyMode: "iptables", Families: IPv4}), l.second().configureSecond(l.Logs(), "iptables")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"containerd.toml", "cni/10-pods.conflist", "kubelet.yaml", "proxy.yaml"} {
		first, second := must(os.ReadFile(l.run(name)))(t), must(os.ReadFile(l.second().run(name)))(t)
		if strings.Contains(string(second), "@") {
			t.Errorf("%s has a placeholder left:\n%s", name, second)
		}
		for _, own := range []string{
			"address: " + nodeAddress, nodeAddress + "/32", ipv4.pods, "cgroupRoot: /" + l.own() + "\n", `"` + l.own() + `"`, l.Run + "/containerd",
			"hostnameOverride: " + nodeName + "\n", l.Logs() + "/pods",
		} {
			if strings.Contains(string(first), own) && strings.Contains(string(second), own) {
				t.Errorf("both nodes have %s in %s", own, name)
			}
		}
	}
}

func TestOptions_nodes(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule    string
		options Options
		allowed bool
	}{
		{"one", Options{Nodes: 1, Families: DualStack}, true},
		{"two", Options{Nodes: 2, Families: IPv4}, true},
		{"the second node has no IPv6", Options{Nodes: 2, Families: DualStack}, false},
		{"none is no cluster", Options{Families: IPv4}, false},
		{"there is no third", Options{Nodes: 3, Families: IPv4}, false},
	} {
		if err := row.options.checkNodes(); (err == nil) != row.allowed {
			t.Errorf("%s: %v", row.rule, err)
		}
	}
}
