// Package config reads the plugin's settings from flags and environment. An invalid value prevents the start, with one
// message that names every invalid setting, its value and what is allowed; no invalid value falls back to its default.
package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cnpg-i/scale-to-zero/plugin/cnpgi"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/ports"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Config holds the plugin's settings.
type Config struct {
	// SidecarImage is the image of the injected container, SidecarResources its requests and limits by the QoS class of
	// the pod.
	SidecarImage     string
	SidecarResources cnpgi.Sidecars
	// UpdateAtOnce makes the operator replace running instances to update their sidecar, unless a Cluster says
	// otherwise.
	UpdateAtOnce bool
	// DozeMemory is PostgreSQL's memory request while its cluster dozes; empty if it stays as it is.
	DozeMemory string
	// ShortenStartupProbes sets the startup probes of other plugins' sidecars in new pods to every second.
	ShortenStartupProbes bool
	// LogLevel is the log level of the plugin and of the sidecars.
	LogLevel slog.Level
	// ServerAddress is the TCP address for the operator, empty for none; the certificates are file paths.
	ServerAddress, ServerCert, ServerKey, ClientCert string
	// SocketDirectory is the operator's plugin directory, for a Unix socket; empty for none.
	SocketDirectory string
	// WakeEndpointAddress is the HTTPS address at which programs wake clusters, with the server's certificate; empty:
	// none.
	WakeEndpointAddress string
	// MetricsAddress is the HTTP address of metrics and probes.
	MetricsAddress string
	// Group and Version are those of the Cluster resource.
	Group, Version string
	// Gateway holds the settings of the wake gateway; nil if it is off, because the pod's identity is not set.
	Gateway *Gateway
}

// Gateway holds the settings of the wake gateway.
type Gateway struct {
	// Ports are the ports that the gateway listens on, Allow the client addresses that it serves.
	Ports ports.Range
	Allow []netip.Prefix
	// WakeTimeout bounds a wake, DrainTimeout the remaining sessions when the plugin stops. HandoverWait is how long
	// other nodes' kube-proxies are given before a cluster may sleep.
	WakeTimeout, HandoverWait, DrainTimeout time.Duration
	// HibernatedBy are the field managers of other tools whose hibernation a connection ends too.
	HibernatedBy []string
	// WakeSourceBurst is the burst of wakes of each source; WakeBurst and WakeRate are the burst and the rate per
	// second that all sources share; Held is how many clients can wait. 0: by the number of clusters.
	WakeSourceBurst, WakeBurst, WakeRate, Held int
	// Replica identifies this pod.
	Replica endpointslice.Replica
}

// setting is a value from a flag or the environment; the flag takes precedence.
type setting struct{ flag, variable, otherwise, usage string }

var settings = []setting{
	{"sidecar-image", "SIDECAR_IMAGE", "", "image of the sidecar; required"},
	{"sidecar-update", "SIDECAR_UPDATE", contract.UpdateOnRestart, "when a new sidecar reaches running instances, where a Cluster does not say otherwise: on-restart or immediate"},
	{"sidecar-cpu-request", "SIDECAR_CPU_REQUEST", "", "CPU request of the sidecar; empty: 10m, and in a Guaranteed pod its limit"},
	{"sidecar-cpu-limit", "SIDECAR_CPU_LIMIT", "100m", "CPU limit of the sidecar"},
	{"sidecar-memory-request", "SIDECAR_MEMORY_REQUEST", "", "memory request of the sidecar; empty: 32Mi, and in a Guaranteed pod its limit"},
	{"sidecar-memory-limit", "SIDECAR_MEMORY_LIMIT", "64Mi", "memory limit of the sidecar, at least 32Mi"},
	{"doze-memory-request", "DOZE_MEMORY_REQUEST", "", "memory request of PostgreSQL's container while its cluster dozes, such as 64Mi; empty: as awake"},
	{"shorten-startup-probes", "SHORTEN_STARTUP_PROBES", "true", "in new pods, probe every second whether other plugins' sidecars have started: true or false"},
	{"log-level", "LOG_LEVEL", "info", "level of the logs of the plugin and of new sidecars: debug, info, warn or error"},
	{"server-address", "SERVER_ADDRESS", "", "address to serve the operator on over TCP, such as :9090"},
	{"server-cert", "SERVER_CERT", "", "file of the server's certificate"},
	{"server-key", "SERVER_KEY", "", "file of the server's key"},
	{"client-cert", "CLIENT_CERT", "", "file of the certificate that the operator must present"},
	{"plugin-socket-dir", "PLUGIN_SOCKET_DIR", "", "the operator's plugin directory, to serve on a Unix socket"},
	{"metrics-address", "METRICS_ADDRESS", ":8080", "address of /metrics, /healthz, /readyz and /peer"},
	{"wake-endpoint-address", "WAKE_ENDPOINT_ADDRESS", "", "address of the HTTPS endpoint that wakes clusters, such as :8443; empty: none"},
	{"gateway-ports", "GATEWAY_PORTS", "10000-29999", "ports of the wake gateway, one for each Service, within 1024-65535"},
	{"gateway-allow", "GATEWAY_ALLOW", "0.0.0.0/0,::/0", "ranges of addresses of clients that the wake gateway serves, separated by commas"},
	{"wake-timeout", "WAKE_TIMEOUT", "5m", "how long a client waits for its cluster to wake; from 10s to 1h"},
	{"wake-hibernated-by", "WAKE_HIBERNATED_BY", "", "field managers of other tools whose hibernation a connection ends too, separated by commas"},
	{"wake-source-burst", "WAKE_SOURCE_BURST", "", "wakes that a replica may begin in a row for each address of clients, and as many more every 100 s; empty: 10, or one for every 200 clusters if that is more"},
	{"wake-burst", "WAKE_BURST", "", "wakes that a replica may begin in a row, for all addresses together, besides those for each; empty: 500, or a twentieth of the clusters if that is more"},
	{"wake-rate", "WAKE_RATE", "", "how many of the latter it may begin in each further second, at most 1000; empty: 1, or one for every 600 clusters if that is more"},
	{"gateway-held", "GATEWAY_HELD", "", "clients that can wait at a replica at once; empty: 4096, or one for each cluster if that is more and there are file descriptors"},
	{"handover-wait", "HANDOVER_WAIT", "2s", "how long to wait until other nodes route clients to the gateway before a cluster may sleep, and away from it after a wake; at most 10s"},
	{"drain-timeout", "DRAIN_TIMEOUT", "20s", "how long clients that wait, and sessions through the gateway, are given when the plugin stops; at most 24h"},
	{"pod-name", "POD_NAME", "", "name of the plugin's pod; without it the wake gateway is off"},
	{"pod-namespace", "POD_NAMESPACE", "", "namespace of the plugin's pod"},
	{"pod-uid", "POD_UID", "", "UID of the plugin's pod"},
	{"pod-ips", "POD_IPS", "", "addresses of the plugin's pod, separated by commas"},
	{"node-name", "NODE_NAME", "", "node of the plugin's pod"},
	{"custom-cnpg-group", "CUSTOM_CNPG_GROUP", contract.DefaultCNPGGroup, "API group of the Cluster resource"},
	{"custom-cnpg-version", "CUSTOM_CNPG_VERSION", contract.DefaultCNPGVersion, "API version of the Cluster resource"},
}

// image matches an image reference by the grammar of container registries (github.com/distribution/reference): a path
// with an optional host, tag and digest.
var image = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]+)?/)?` + component + `(/` + component + `)*` +
	`(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[a-f0-9]{64})?$`)

// component matches a part of an image's path.
const component = `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`

// reader validates the values and collects the problems.
type reader struct {
	values   map[string]string
	problems []error
}

// Parse reads arguments and environment. lookup is [os.LookupEnv] outside of tests.
func Parse(arguments []string, lookup func(string) (string, bool), output io.Writer) (Config, error) {
	flags := flag.NewFlagSet("plugin", flag.ContinueOnError)
	flags.SetOutput(output)
	values := map[string]*string{}
	for _, s := range settings {
		otherwise := s.otherwise
		if value, set := lookup(s.variable); set {
			otherwise = value
		}
		values[s.variable] = flags.String(s.flag, otherwise, s.usage+" ("+s.variable+")")
	}
	if err := flags.Parse(arguments); err != nil {
		return Config{}, fmt.Errorf("read the flags: %w", err)
	}
	r := reader{values: map[string]string{}}
	for name, value := range values {
		r.values[name] = *value
	}
	if flags.NArg() != 0 {
		r.problems = append(r.problems, fmt.Errorf("argument %q is invalid: all settings are flags", flags.Arg(0)))
	}
	config := r.config()
	if len(r.problems) != 0 {
		return Config{}, fmt.Errorf("bad settings:\n%w", errors.Join(r.problems...))
	}
	return config, nil
}

func (r *reader) bad(name, allowed string) {
	r.problems = append(r.problems, fmt.Errorf("%s is %q: %s", name, r.values[name], allowed))
}

func (r *reader) config() Config {
	c := Config{
		SidecarImage: r.values["SIDECAR_IMAGE"], UpdateAtOnce: r.values["SIDECAR_UPDATE"] == contract.UpdateImmediate,
		ShortenStartupProbes: r.values["SHORTEN_STARTUP_PROBES"] == "true",
		SocketDirectory:      r.values["PLUGIN_SOCKET_DIR"], MetricsAddress: r.values["METRICS_ADDRESS"],
		WakeEndpointAddress: r.values["WAKE_ENDPOINT_ADDRESS"],
		ServerAddress:       r.values["SERVER_ADDRESS"], ServerCert: r.values["SERVER_CERT"],
		ServerKey:  r.values["SERVER_KEY"],
		ClientCert: r.values["CLIENT_CERT"], Group: r.values["CUSTOM_CNPG_GROUP"], Version: r.values["CUSTOM_CNPG_VERSION"],
	}
	if !image.MatchString(c.SidecarImage) {
		r.bad("SIDECAR_IMAGE", "it must be the reference of an image, such as example.org/team/sidecar:v1")
	}
	if !c.UpdateAtOnce && r.values["SIDECAR_UPDATE"] != contract.UpdateOnRestart {
		r.bad("SIDECAR_UPDATE", "it must be on-restart or immediate")
	}
	if err := c.LogLevel.UnmarshalText([]byte(r.values["LOG_LEVEL"])); err != nil {
		r.bad("LOG_LEVEL", "it must be debug, info, warn or error")
	}
	c.SidecarResources = r.sidecarResources()
	if c.DozeMemory = r.values["DOZE_MEMORY_REQUEST"]; c.DozeMemory != "" {
		r.quantity("DOZE_MEMORY_REQUEST", leastMemoryRequest)
	}
	if !c.ShortenStartupProbes && r.values["SHORTEN_STARTUP_PROBES"] != "false" {
		r.bad("SHORTEN_STARTUP_PROBES", "it must be true or false")
	}
	r.serving(c)
	c.Gateway = r.gateway(c)
	if problems := validation.IsDNS1123Subdomain(c.Group); len(problems) != 0 {
		r.bad("CUSTOM_CNPG_GROUP", "it must be a DNS name such as postgresql.cnpg.io")
	}
	if problems := validation.IsDNS1123Label(c.Version); len(problems) != 0 {
		r.bad("CUSTOM_CNPG_VERSION", "it must be a version such as v1")
	}
	return c
}

// address checks an address to listen on.
func (r *reader) address(name, example string) {
	_, text, err := net.SplitHostPort(r.values[name])
	if number, invalid := strconv.ParseUint(text, 10, 16); err != nil || invalid != nil || number == 0 {
		r.bad(name, "it must be an address and a port from 1 to 65535, such as "+example)
	}
}

// serving checks the addresses to listen on, and the files and settings that they need.
func (r *reader) serving(c Config) {
	r.address("METRICS_ADDRESS", ":8080")
	if c.ServerAddress == "" && c.SocketDirectory == "" {
		r.bad("SERVER_ADDRESS", "set it or PLUGIN_SOCKET_DIR, because otherwise the operator cannot reach the plugin")
	}
	if c.SocketDirectory != "" {
		if info, err := os.Stat(c.SocketDirectory); err != nil || !info.IsDir() {
			r.bad("PLUGIN_SOCKET_DIR", "it must be a directory that exists")
		}
	}
	switch {
	case c.ServerAddress != "":
		r.address("SERVER_ADDRESS", ":9090")
		r.files("SERVER_ADDRESS", "SERVER_CERT", "SERVER_KEY", "CLIENT_CERT")
	case c.WakeEndpointAddress != "":
		r.files("WAKE_ENDPOINT_ADDRESS", "SERVER_CERT", "SERVER_KEY")
	}
	if c.WakeEndpointAddress != "" {
		r.address("WAKE_ENDPOINT_ADDRESS", ":8443")
		if r.values["POD_NAME"] == "" {
			r.bad("WAKE_ENDPOINT_ADDRESS", "set POD_NAME too, because without the wake gateway no request wakes a cluster")
		}
	}
}

// files checks that the files exist that another setting needs.
func (r *reader) files(needs string, names ...string) {
	for _, name := range names {
		if _, err := os.Stat(r.values[name]); err != nil {
			r.bad(name, "it must be a file that exists, because "+needs+" is set")
		}
	}
}

// The sidecar's default requests. It uses 0.03 % of a core while no client connects, and less than 20 MiB in its two
// processes; under load it may use up to its limit.
const (
	usedCPU    = "10m"
	usedMemory = "32Mi"
)

// The smallest quantities: the sidecar's two processes do not start with a smaller limit of memory, and a smaller
// request is a quantity without its unit.
var (
	leastCPU           = resource.MustParse("1m")
	leastMemory        = resource.MustParse(usedMemory)
	leastMemoryRequest = resource.MustParse("1Mi")
)

// sidecarResources reads the requests and limits. An explicit request applies to every pod.
func (r *reader) sidecarResources() cnpgi.Sidecars {
	resources := cnpgi.Sidecars{
		Burstable:  corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}},
		Guaranteed: corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}},
	}
	for _, of := range []struct {
		name                 corev1.ResourceName
		request, limit, used string
		leastRequest, least  resource.Quantity
	}{
		{corev1.ResourceCPU, "SIDECAR_CPU_REQUEST", "SIDECAR_CPU_LIMIT", usedCPU, leastCPU, leastCPU},
		{corev1.ResourceMemory, "SIDECAR_MEMORY_REQUEST", "SIDECAR_MEMORY_LIMIT", usedMemory, leastMemoryRequest, leastMemory},
	} {
		limit := r.quantity(of.limit, of.least)
		burstable, guaranteed := resource.MustParse(of.used), limit
		if r.values[of.request] != "" {
			burstable = r.quantity(of.request, of.leastRequest)
			guaranteed = burstable
			if burstable.Cmp(limit) > 0 {
				r.bad(of.request, fmt.Sprintf("it must be at most %s, which is %q", of.limit, r.values[of.limit]))
			}
		} else if burstable.Cmp(limit) > 0 {
			burstable = limit
		}
		resources.Burstable.Requests[of.name], resources.Burstable.Limits[of.name] = burstable, limit
		resources.Guaranteed.Requests[of.name], resources.Guaranteed.Limits[of.name] = guaranteed, limit
	}
	return resources
}

// quantity reads a quantity, of memory in whole bytes.
func (r *reader) quantity(name string, least resource.Quantity) resource.Quantity {
	quantity, err := resource.ParseQuantity(r.values[name])
	if memory := least.Format == resource.BinarySI; err != nil || quantity.Cmp(least) < 0 ||
		memory && quantity.CmpInt64(quantity.Value()) != 0 {
		allowed := fmt.Sprintf("it must be a quantity of at least %s, such as 100m", &least)
		if memory {
			allowed = fmt.Sprintf("it must be a quantity of whole bytes, of at least %s, such as 64Mi", &least)
		}
		r.bad(name, allowed)
	}
	return quantity
}
