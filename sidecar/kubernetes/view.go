package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes/api"
	"github.com/cnpg-i/scale-to-zero/sidecar/ownership"
)

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
	// VolumesAtRisk says that a maintenance window is in progress in which the operator deletes the volumes of a pod that cannot
	// be scheduled (reusePVC is false): no pod may be made or deleted on our account.
	VolumesAtRisk bool
}

// waitingForHealthy is the condition's reason while the operator has not begun to hibernate (1.30: pkg/reconciler/
// hibernation/status.go). It writes the condition before it deletes the first pod.
const waitingForHealthy = "WaitingForHealthy"

// Before reports whether the view is of an older state of the Cluster than another. resourceVersions are numbers that grow
// (apimachinery: util/resourceversion); one that is none is not older, nor is another object of
// the same name.
func (v View) Before(other View) bool {
	order, err := resourceversion.CompareResourceVersion(v.ResourceVersion, other.ResourceVersion)
	return err == nil && order < 0 && v.UID == other.UID
}

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
		{v.Annotations[contract.AnnotationUnroutableServices] != "", idle.ReasonServiceUnroutable},
	} {
		if rule.applies {
			blockers = append(blockers, rule.reason)
		}
	}
	return blockers
}

// Get reads the Cluster from the API server.
func (c *Client) Get(ctx context.Context) (View, error) {
	ctx, cancel := callContext(ctx)
	defer cancel()
	var cluster api.Cluster
	if err := c.read("clusters").Name(c.identity.Cluster).Do(ctx).Into(&cluster); err != nil {
		return View{}, fmt.Errorf("read the Cluster: %w", classify(err))
	}
	return viewOf(&cluster), nil
}

func viewOf(c *api.Cluster) View {
	view := View{
		UID: string(c.UID), Name: c.Name, Generation: c.Generation, ResourceVersion: c.ResourceVersion, Annotations: c.Annotations,
		CurrentPrimary: c.Status.CurrentPrimary, TargetPrimary: c.Status.TargetPrimary,
		Healthy: c.Status.Phase == phaseHealthy, Instances: c.Status.InstanceNames, Addresses: addresses(c),
		ApplicationDatabase:    applicationDatabase(c),
		Hibernating:            c.Annotations[contract.AnnotationHibernation] == "on",
		PluginListed:           slices.ContainsFunc(c.Spec.Plugins, isOurs),
		ReplicaCluster:         replica(c),
		Fenced:                 fenced(c.Annotations["cnpg.io/fencedInstances"]),
		ReconciliationDisabled: c.Annotations["cnpg.io/reconciliationLoop"] == "disabled",
	}
	view.Ours = view.Hibernating && ownership.SetByUs(c.ManagedFields, "metadata", "annotations", contract.AnnotationHibernation)
	view.AsleepSince, _ = time.Parse(time.RFC3339, c.Annotations[contract.AnnotationAsleepSince]) // zero if a person wrote something else
	if window := c.Spec.NodeMaintenanceWindow; window != nil {
		view.Maintenance = window.InProgress
		view.VolumesAtRisk = window.InProgress && window.ReusePVC != nil && !*window.ReusePVC
	}
	for _, condition := range c.Status.Conditions {
		view.ArchivingFailing = view.ArchivingFailing || condition.Type == "ContinuousArchiving" && condition.Status == "False"
		if condition.Type == contract.AnnotationHibernation { // the operator names the condition like the annotation
			view.Hibernation = condition.Reason
		}
	}
	return view
}

// addresses are those that the instances reported; nil without any.
func addresses(c *api.Cluster) map[string]netip.Addr {
	var found map[string]netip.Addr
	for name, state := range c.Status.InstancesReportedState {
		address, err := netip.ParseAddr(state.IP)
		if err != nil {
			continue
		}
		if found == nil {
			found = map[string]netip.Addr{}
		}
		found[name] = address.Unmap()
	}
	return found
}

// isOurs reports whether a plugin that the Cluster lists is this project's, enabled.
func isOurs(plugin api.Plugin) bool {
	return plugin.Name == contract.PluginName && (plugin.Enabled == nil || *plugin.Enabled)
}

// applicationDatabase follows Cluster.GetApplicationDatabaseName (1.30: api/v1/cluster_funcs.go). The operator's webhook has
// put "app" where the Cluster named none; an import of a whole server names none.
func applicationDatabase(c *api.Cluster) string {
	bootstrap := c.Spec.Bootstrap
	return cmp.Or(bootstrap.Recovery.Database, bootstrap.PgBaseBackup.Database, bootstrap.InitDB.Database)
}

// replica follows Cluster.IsReplica (1.30: api/v1/cluster_funcs.go): an explicit switch, else whether the primary of the
// distributed topology is another cluster.
func replica(c *api.Cluster) bool {
	replica := c.Spec.Replica
	if replica == nil {
		return false
	}
	if replica.Enabled != nil {
		return *replica.Enabled
	}
	return replica.Primary != cmp.Or(replica.Self, c.Name)
}

// fenced reads the annotation's JSON list of instances, or "*". What is not understood forbids sleep.
func fenced(value string) bool {
	if value == "" {
		return false
	}
	var instances []string
	return json.Unmarshal([]byte(value), &instances) != nil || len(instances) != 0
}
