// Package contract is the interface between the sidecar, the plugin and the kubectl command: annotation keys, the
// announcement of sleep, the JSON of /activity and /client-address, ports and names, and how they distinguish their own
// writes from those of others. Each is defined only here. Of Kubernetes the package imports only the metadata of
// objects.
package contract

const (
	// LabelManagedBy marks what the plugin makes for a Cluster, with the value [ManagedBy].
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "cnpg-i-scale-to-zero"
	// PluginName is the name under which a Cluster lists the plugin.
	PluginName = "cnpg-i-scale-to-zero.xata.io"
	// FieldManager is the field manager of everything that the sidecars write, and of the plugin's patches of a
	// Cluster.
	FieldManager = "cnpg-i-scale-to-zero"
	// ApplicationName is the application_name of the sidecar's own sessions, and of the probes of the sidecar and the
	// gateway.
	ApplicationName = "cnpg-i-scale-to-zero"
	// ListeningApplicationName is that of the session that receives the notifications, once it does: sql/functions.sql
	// refuses a request while there is none.
	ListeningApplicationName = ApplicationName + " listening"
	// SidecarPort is where every sidecar serves /metrics, /activity and /client-address.
	SidecarPort = 9189
	// ReadinessPort is where the sidecar of a pod that may doze accepts the connections of the kubelet's readiness
	// probe. It closes the port to make the pod not ready, before a doze and during it.
	ReadinessPort = 9190
)
