// Package contract is what the sidecar, the plugin and the kubectl command say to each other: annotation keys, the
// announcement of sleep, the JSON of /activity and /client-address, ports and names. Each is written once, here, and the package
// imports nothing of Kubernetes.
package contract

const (
	// PluginName is the name under which a Cluster lists the plugin.
	PluginName = "cnpg-i-scale-to-zero.xata.io"
	// FieldManager is the field manager of everything that the instances write, and of the plugin's patches of a Cluster.
	FieldManager = "cnpg-i-scale-to-zero"
	// SidecarPort is where every sidecar serves /metrics, /activity and /client-address.
	SidecarPort = 9189
)
