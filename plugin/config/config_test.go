package config

import (
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// pod returns the settings of an identified pod, some of them changed.
func pod(change map[string]string) map[string]string {
	settings := map[string]string{
		"POD_NAME": "scale-to-zero-1", "POD_NAMESPACE": "cnpg-system", "POD_UID": "u", "POD_IPS": "10.0.0.1,fd00::1", "NODE_NAME": "n",
	}
	maps.Copy(settings, change)
	return settings
}

func TestParse(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	for _, name := range []string{"crt", "key", "client"} {
		if err := os.WriteFile(filepath.Join(directory, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	good := map[string]string{
		"SIDECAR_IMAGE": "example.org/team/sidecar:v1", "SERVER_ADDRESS": ":9090", "SERVER_CERT": filepath.Join(directory, "crt"),
		"SERVER_KEY": filepath.Join(directory, "key"), "CLIENT_CERT": filepath.Join(directory, "client"),
	}
	for _, row := range []struct {
		rule      string
		change    map[string]string
		arguments []string
		bad       []string
	}{
		{"good settings are taken", nil, nil, nil},
		{"a flag wins over the environment", map[string]string{"LOG_LEVEL": "loud"}, []string{"--log-level=debug"}, nil},
		{"an image is needed", map[string]string{"SIDECAR_IMAGE": ""}, nil, []string{"SIDECAR_IMAGE"}},
		{"an image has no spaces", map[string]string{"SIDECAR_IMAGE": "a b"}, nil, []string{"SIDECAR_IMAGE"}},
		{"a path has no empty part", map[string]string{"SIDECAR_IMAGE": "reg.example.org/team//x:1"}, nil, []string{"SIDECAR_IMAGE"}},
		{"nor an empty tag", map[string]string{"SIDECAR_IMAGE": "a::b"}, nil, []string{"SIDECAR_IMAGE"}},
		{"and one tag", map[string]string{"SIDECAR_IMAGE": "example.org/x:1:2"}, nil, []string{"SIDECAR_IMAGE"}},
		{"its path is of small letters", map[string]string{"SIDECAR_IMAGE": "example.org/Team/x:1"}, nil, []string{"SIDECAR_IMAGE"}},
		{"its host need not be", map[string]string{"SIDECAR_IMAGE": "Registry.Example.org:5000/a_b/c.d/e--f__g:V1_a.b-c"}, nil, nil},
		{"a digest is an image", map[string]string{"SIDECAR_IMAGE": "localhost:5000/s@sha256:" + strings.Repeat("a", 64)}, nil, nil},
		{"a new sidecar may reach running instances", map[string]string{"SIDECAR_UPDATE": "immediate"}, nil, nil},
		{"now or at their next restart", map[string]string{"SIDECAR_UPDATE": "always"}, nil, []string{"SIDECAR_UPDATE"}},
		{"a request is at most its limit", map[string]string{"SIDECAR_CPU_REQUEST": "2"}, nil, []string{"SIDECAR_CPU_REQUEST"}},
		{"a quantity is positive", map[string]string{"SIDECAR_MEMORY_LIMIT": "0", "SIDECAR_MEMORY_REQUEST": "-1"}, nil, []string{"SIDECAR_MEMORY_LIMIT", "SIDECAR_MEMORY_REQUEST"}},
		{"memory is in whole bytes", map[string]string{"SIDECAR_MEMORY_LIMIT": "64m", "DOZE_MEMORY_REQUEST": "1048576.5"}, nil, []string{"SIDECAR_MEMORY_LIMIT", "DOZE_MEMORY_REQUEST"}},
		{"and has its unit", map[string]string{"SIDECAR_MEMORY_LIMIT": "64", "SIDECAR_MEMORY_REQUEST": "32", "DOZE_MEMORY_REQUEST": "64"}, nil, []string{"SIDECAR_MEMORY_LIMIT", "SIDECAR_MEMORY_REQUEST", "DOZE_MEMORY_REQUEST"}},
		{"the sidecar starts with its limit", map[string]string{"SIDECAR_MEMORY_LIMIT": "31Mi"}, nil, []string{"SIDECAR_MEMORY_LIMIT"}},
		{"CPU is at least a thousandth", map[string]string{"SIDECAR_CPU_LIMIT": "500u", "SIDECAR_CPU_REQUEST": "1u"}, nil, []string{"SIDECAR_CPU_LIMIT", "SIDECAR_CPU_REQUEST"}},
		{"a wake takes seconds", map[string]string{"WAKE_TIMEOUT": "9s"}, nil, []string{"WAKE_TIMEOUT"}},
		{"a port has a number", map[string]string{"METRICS_ADDRESS": ":99999", "SERVER_ADDRESS": ":0"}, nil, []string{"METRICS_ADDRESS", "SERVER_ADDRESS"}},
		{"and no name", map[string]string{"METRICS_ADDRESS": ":http"}, nil, []string{"METRICS_ADDRESS"}},
		{"an empty variable is no default", map[string]string{"SIDECAR_CPU_LIMIT": ""}, nil, []string{"SIDECAR_CPU_LIMIT"}},
		{"somebody must be able to reach it", map[string]string{"SERVER_ADDRESS": ""}, nil, []string{"SERVER_ADDRESS"}},
		{"a socket alone is enough", map[string]string{"SERVER_ADDRESS": "", "PLUGIN_SOCKET_DIR": directory}, nil, nil},
		{"certificates must exist", map[string]string{"SERVER_KEY": "/none", "CLIENT_CERT": ""}, nil, []string{"SERVER_KEY", "CLIENT_CERT"}},
		{"every bad setting is named at once", map[string]string{"LOG_LEVEL": "loud", "METRICS_ADDRESS": "8080", "CUSTOM_CNPG_GROUP": "!"}, nil, []string{"LOG_LEVEL", "METRICS_ADDRESS", "CUSTOM_CNPG_GROUP"}},
		{"an endpoint may wake clusters", pod(map[string]string{"WAKE_ENDPOINT_ADDRESS": ":8443"}), nil, nil},
		{"with the server's certificate alone", pod(map[string]string{"WAKE_ENDPOINT_ADDRESS": ":8443", "SERVER_ADDRESS": "", "CLIENT_CERT": "", "PLUGIN_SOCKET_DIR": directory}), nil, nil},
		{"which must exist", pod(map[string]string{"WAKE_ENDPOINT_ADDRESS": "8443", "SERVER_ADDRESS": "", "SERVER_KEY": "", "PLUGIN_SOCKET_DIR": directory}), nil, []string{"WAKE_ENDPOINT_ADDRESS", "SERVER_KEY"}},
		{"nothing but the gateway's replicas wake on request", map[string]string{"WAKE_ENDPOINT_ADDRESS": ":8443"}, nil, []string{"WAKE_ENDPOINT_ADDRESS", "POD_NAME"}},
		{"the endpoint's port is not the gateway's", pod(map[string]string{"WAKE_ENDPOINT_ADDRESS": ":8443", "GATEWAY_PORTS": "8443-8443"}), nil, []string{"GATEWAY_PORTS"}},
		{"a pod that says which one it is has a gateway", pod(nil), nil, nil},
		{"a pod has addresses", pod(map[string]string{"POD_IPS": "10.0.0.1;10.0.0.2"}), nil, []string{"POD_IPS"}},
		{"a pod has a namespace and a UID", pod(map[string]string{"POD_NAMESPACE": "", "POD_UID": ""}), nil, []string{"POD_NAMESPACE", "POD_UID"}},
		{"the gateway's ports are a range", map[string]string{"GATEWAY_PORTS": "10000"}, nil, []string{"GATEWAY_PORTS"}},
		{"the gateway's ports are not those of outgoing connections", pod(map[string]string{"GATEWAY_PORTS": "1024-65535"}), nil, []string{"GATEWAY_PORTS"}},
		{"the gateway's ports are not the plugin's own", pod(map[string]string{"GATEWAY_PORTS": "9090-9090"}), nil, []string{"GATEWAY_PORTS"}},
		{"clients are allowed by ranges", map[string]string{"GATEWAY_ALLOW": "10.0.0.0/8, everybody"}, nil, []string{"GATEWAY_ALLOW"}},
		{"the other nodes are given ten seconds at most", map[string]string{"HANDOVER_WAIT": "10.1s"}, nil, []string{"HANDOVER_WAIT"}},
		{"durations have bounds", map[string]string{"WAKE_TIMEOUT": "1h0m1s", "HANDOVER_WAIT": "-1s", "DRAIN_TIMEOUT": "20"}, nil, []string{"WAKE_TIMEOUT", "HANDOVER_WAIT", "DRAIN_TIMEOUT"}},
		{"numbers are positive and bounded", map[string]string{"WAKE_SOURCE_BURST": "-1", "WAKE_BURST": "0", "WAKE_RATE": "1001", "GATEWAY_HELD": "many"}, nil, []string{"WAKE_SOURCE_BURST", "WAKE_BURST", "WAKE_RATE", "GATEWAY_HELD"}},
		{"tools may be listed", pod(map[string]string{"WAKE_HIBERNATED_BY": "sablier, other"}), nil, nil},
		{"but by their names", map[string]string{"WAKE_HIBERNATED_BY": "sablier,,other"}, nil, []string{"WAKE_HIBERNATED_BY"}},
		{"numbers may be set", pod(map[string]string{"WAKE_SOURCE_BURST": "1", "WAKE_BURST": "1000", "WAKE_RATE": "20", "GATEWAY_HELD": "1"}), nil, nil},
		{"clients are held by file descriptors", pod(map[string]string{"GATEWAY_HELD": "1000000000"}), nil, []string{"GATEWAY_HELD", "RLIMIT_NOFILE"}},
		{"a dozing PostgreSQL may request less memory", map[string]string{"DOZE_MEMORY_REQUEST": "64Mi"}, nil, nil},
		{"which is a quantity", map[string]string{"DOZE_MEMORY_REQUEST": "small"}, nil, []string{"DOZE_MEMORY_REQUEST"}},
		{"other sidecars' startup probes may be left as they are", map[string]string{"SHORTEN_STARTUP_PROBES": "false"}, nil, nil},
		{"which is said by true or false", map[string]string{"SHORTEN_STARTUP_PROBES": "1"}, nil, []string{"SHORTEN_STARTUP_PROBES"}},
		{"words that are no flags are not passed over", nil, []string{"extra"}, []string{"extra"}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			lookup := func(name string) (string, bool) {
				if value, set := row.change[name]; set {
					return value, true
				}
				value, set := good[name]
				return value, set
			}
			config, err := Parse(row.arguments, lookup, io.Discard)
			if len(row.bad) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				if config.SidecarImage == "" || !config.SidecarResources.KeepGuaranteed() {
					t.Errorf("got %+v", config)
				}
				if config.ShortenStartupProbes != (row.change["SHORTEN_STARTUP_PROBES"] != "false") {
					t.Errorf("startup probes are shortened: %t", config.ShortenStartupProbes)
				}
				if config.DozeMemory != row.change["DOZE_MEMORY_REQUEST"] {
					t.Errorf("a dozing PostgreSQL requests %q", config.DozeMemory)
				}
				if named := row.change["POD_NAME"] != ""; named != (config.Gateway != nil) || named && len(config.Gateway.Replica.Addresses) != 2 {
					t.Errorf("the gateway is %+v", config.Gateway)
				}
				return
			}
			if err == nil {
				t.Fatal("bad settings were taken")
			}
			for _, name := range row.bad {
				if !strings.Contains(err.Error(), name) {
					t.Errorf("the message does not name %s: %v", name, err)
				}
				if value, set := row.change[name]; set && !strings.Contains(err.Error(), `"`+value+`"`) {
					t.Errorf("the message does not show the value %q: %v", value, err)
				}
			}
		})
	}
}

func TestAllowedClients(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ rule, value, address string }{
		{"a range of IPv4", "10.0.0.0/8", "10.1.2.3"},
		{"one of IPv6", "10.0.0.0/8, fd00::/8", "fd12::1"},
		{"one of IPv4 in the form of IPv6", "::ffff:10.0.0.0/104", "10.1.2.3"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			r := &reader{values: map[string]string{"GATEWAY_ALLOW": row.value}}
			address := netip.MustParseAddr(row.address)
			if !slices.ContainsFunc(list(r, "GATEWAY_ALLOW", "", prefix), func(p netip.Prefix) bool { return p.Contains(address) }) {
				t.Errorf("%s does not allow %s", row.value, row.address)
			}
		})
	}
}
