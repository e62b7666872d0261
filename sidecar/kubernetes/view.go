package kubernetes

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// PluginName is the name under which a Cluster lists the plugin.
const PluginName = "cnpg-i-scale-to-zero.xata.io"

// phaseHealthy is how the operator says that every instance serves (1.30: api/v1, PhaseHealthy).
const phaseHealthy = "Cluster in healthy state"

// View is what the sidecar needs to know of its Cluster.
type View struct {
	// UID, Name and ResourceVersion identify the object and its state.
	UID, Name, ResourceVersion string
	// Generation changes with the specification.
	Generation int64
	// Annotations are those of the object.
	Annotations map[string]string
	// CurrentPrimary and TargetPrimary are pod names; they differ during a switchover or failover.
	CurrentPrimary, TargetPrimary string
	// Healthy says that the phase is healthy.
	Healthy bool
	// Instances are the names of the pods.
	Instances []string
	// Addresses are those that the instances reported, by the name of the pod.
	Addresses map[string]netip.Addr
	// ApplicationDatabase is the database that the Cluster was made with; empty when it names none.
	ApplicationDatabase string
	// ExporterTLS says that the operator's exporter serves over TLS.
	ExporterTLS bool
	// ExporterMemory is for how long the operator's exporter answers from its memory.
	ExporterMemory time.Duration
	// Hibernating says that the switch is on, and Ours that our field manager alone owns it: it was turned on by us, and nobody
	// has turned it off and on since, or applied the same on the server's side.
	Hibernating, Ours bool
	// Hibernation is the reason of the operator's condition: how far it has got; empty without one.
	Hibernation string
	// AsleepSince is when we turned the switch on; zero if we did not say.
	AsleepSince time.Time
	// PluginListed says that the Cluster lists the plugin, enabled.
	PluginListed bool
	// ReplicaCluster, Fenced, Maintenance, ReconciliationDisabled and ArchivingFailing each forbid sleep.
	ReplicaCluster, Fenced, Maintenance, ReconciliationDisabled, ArchivingFailing bool
}

// waitingForHealthy is the condition's reason while the operator has not begun to hibernate (1.30: pkg/reconciler/
// hibernation/status.go). It writes the condition before it deletes the first pod.
const waitingForHealthy = "WaitingForHealthy"

// Untouched says that the switch is on but that the operator has deleted nothing for it yet, as of this state of the
// Cluster.
func (v View) Untouched() bool {
	return v.Hibernating && (v.Hibernation == "" || v.Hibernation == waitingForHealthy)
}

// Blockers is what the Cluster itself says against sleep decided by the given pod.
func (v View) Blockers(pod string) []idle.Reason {
	var blockers []idle.Reason
	for _, rule := range []struct {
		applies bool
		reason  idle.Reason
	}{
		{!v.PluginListed, idle.ReasonPluginNotListed},
		{v.Hibernating, idle.ReasonAlreadyHibernating},
		{v.CurrentPrimary != pod, idle.ReasonNotPrimary},
		{v.CurrentPrimary == pod && v.TargetPrimary != pod, idle.ReasonSwitchover},
		{!v.Healthy, idle.ReasonUnhealthy},
		{v.ReconciliationDisabled, idle.ReasonReconciliationDisabled},
		{v.Fenced, idle.ReasonFenced},
		{v.Maintenance, idle.ReasonMaintenance},
		{v.ReplicaCluster, idle.ReasonReplicaCluster},
		{v.ArchivingFailing, idle.ReasonArchivingFailing},
	} {
		if rule.applies {
			blockers = append(blockers, rule.reason)
		}
	}
	return blockers
}

// cluster is the part of a Cluster that is decoded.
type cluster struct {
	Metadata struct {
		UID             string            `json:"uid"`
		Name            string            `json:"name"`
		ResourceVersion string            `json:"resourceVersion"`
		Generation      int64             `json:"generation"`
		Annotations     map[string]string `json:"annotations"`
		ManagedFields   []managedFields   `json:"managedFields"`
	} `json:"metadata"`
	Spec struct {
		Bootstrap struct {
			InitDB       databaseOf `json:"initdb"`
			Recovery     databaseOf `json:"recovery"`
			PgBaseBackup databaseOf `json:"pg_basebackup"`
		} `json:"bootstrap"`
		Plugins []struct {
			Name    string `json:"name"`
			Enabled *bool  `json:"enabled"`
		} `json:"plugins"`
		Replica *struct {
			Enabled *bool  `json:"enabled"`
			Primary string `json:"primary"`
			Self    string `json:"self"`
		} `json:"replica"`
		Monitoring struct {
			QueriesTTL *string `json:"metricsQueriesTTL"`
			TLS        struct {
				Enabled bool `json:"enabled"`
			} `json:"tls"`
		} `json:"monitoring"`
		NodeMaintenanceWindow *struct {
			InProgress bool `json:"inProgress"`
		} `json:"nodeMaintenanceWindow"`
	} `json:"spec"`
	Status struct {
		Phase          string   `json:"phase"`
		CurrentPrimary string   `json:"currentPrimary"`
		TargetPrimary  string   `json:"targetPrimary"`
		InstanceNames  []string `json:"instanceNames"`
		Conditions     []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
			Reason string `json:"reason"`
		} `json:"conditions"`
		InstancesReportedState map[string]struct {
			IP string `json:"ip"`
		} `json:"instancesReportedState"`
	} `json:"status"`
}

// managedFields is the part of a field manager's entry that is decoded: the annotations that it owns.
type managedFields struct {
	Manager   string `json:"manager"`
	Operation string `json:"operation"`
	Fields    struct {
		Metadata struct {
			Annotations map[string]json.RawMessage `json:"f:annotations"`
		} `json:"f:metadata"`
	} `json:"fieldsV1"`
}

func (m *managedFields) owns(annotation string) bool {
	_, owned := m.Fields.Metadata.Annotations["f:"+annotation]
	return owned
}

// switchedByUs tells whether the switch is ours alone: somebody who applies the same value on the server's side wants it too.
func (c *cluster) switchedByUs() bool {
	ours := false
	for i := range c.Metadata.ManagedFields {
		switch entry := &c.Metadata.ManagedFields[i]; {
		case !entry.owns(idle.KeyHibernation):
		case entry.Manager == FieldManager:
			ours = true
		case entry.Operation == "Apply":
			return false
		}
	}
	return ours
}

type databaseOf struct {
	Database string `json:"database"`
}

// decodeView reads a Cluster.
func decodeView(body []byte) (View, error) {
	var c cluster
	if err := json.Unmarshal(body, &c); err != nil {
		return View{}, fmt.Errorf("decode the Cluster: %w", err)
	}
	return c.view(), nil
}

func (c *cluster) view() View {
	annotations := c.Metadata.Annotations
	view := View{
		UID: c.Metadata.UID, Name: c.Metadata.Name, Generation: c.Metadata.Generation, ResourceVersion: c.Metadata.ResourceVersion, Annotations: annotations,
		CurrentPrimary: c.Status.CurrentPrimary, TargetPrimary: c.Status.TargetPrimary,
		Healthy: c.Status.Phase == phaseHealthy, Instances: c.Status.InstanceNames,
		ApplicationDatabase:    c.applicationDatabase(),
		ExporterTLS:            c.Spec.Monitoring.TLS.Enabled,
		ExporterMemory:         c.exporterMemory(),
		Hibernating:            annotations[idle.KeyHibernation] == "on",
		ReplicaCluster:         c.replica(),
		Fenced:                 fenced(annotations["cnpg.io/fencedInstances"]),
		Maintenance:            c.Spec.NodeMaintenanceWindow != nil && c.Spec.NodeMaintenanceWindow.InProgress,
		ReconciliationDisabled: annotations["cnpg.io/reconciliationLoop"] == "disabled",
	}
	view.Ours = view.Hibernating && c.switchedByUs()
	view.AsleepSince, _ = time.Parse(time.RFC3339, annotations[idle.KeyAsleepSince]) // zero if a person wrote something else
	for name, state := range c.Status.InstancesReportedState {
		if address, err := netip.ParseAddr(state.IP); err == nil {
			if view.Addresses == nil {
				view.Addresses = map[string]netip.Addr{}
			}
			view.Addresses[name] = address.Unmap()
		}
	}
	for _, plugin := range c.Spec.Plugins {
		view.PluginListed = view.PluginListed || plugin.Name == PluginName && (plugin.Enabled == nil || *plugin.Enabled)
	}
	for _, condition := range c.Status.Conditions {
		view.ArchivingFailing = view.ArchivingFailing || condition.Type == "ContinuousArchiving" && condition.Status == "False"
		if condition.Type == idle.KeyHibernation { // the operator names the condition like the annotation
			view.Hibernation = condition.Reason
		}
	}
	return view
}

// applicationDatabase follows Cluster.GetApplicationDatabaseName (1.30: api/v1/cluster_funcs.go). The operator's webhook has
// put "app" where the Cluster named none; an import of a whole server names none.
func (c *cluster) applicationDatabase() string {
	bootstrap := c.Spec.Bootstrap
	return cmp.Or(bootstrap.Recovery.Database, bootstrap.PgBaseBackup.Database, bootstrap.InitDB.Database)
}

// exporterMemory follows Cluster.GetMetricsQueriesTTL (1.30: api/v1/cluster_funcs.go). What is not understood is the shortest.
func (c *cluster) exporterMemory() time.Duration {
	if ttl := c.Spec.Monitoring.QueriesTTL; ttl != nil {
		memory, _ := time.ParseDuration(*ttl)
		return memory
	}
	return 30 * time.Second
}

// replica follows Cluster.IsReplica (1.30: api/v1/cluster_funcs.go): an explicit switch, else whether the primary of the
// distributed topology is another cluster.
func (c *cluster) replica() bool {
	replica := c.Spec.Replica
	if replica == nil {
		return false
	}
	if replica.Enabled != nil {
		return *replica.Enabled
	}
	return replica.Primary != cmp.Or(replica.Self, c.Metadata.Name)
}

// fenced reads the annotation's JSON list of instances, or "*". What is not understood forbids sleep.
func fenced(value string) bool {
	if value == "" {
		return false
	}
	var instances []string
	return json.Unmarshal([]byte(value), &instances) != nil || len(instances) != 0
}
