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
)

// phaseHealthy is the phase in which every instance is ready (1.30: api/v1, PhaseHealthy).
const phaseHealthy = "Cluster in healthy state"

// phaseRestarting is the phase in which the primary's instance manager restarts PostgreSQL (1.30: api/v1,
// PhaseInplacePrimaryRestart).
const phaseRestarting = "Primary instance is being restarted in-place"

// podHealthy is the key of the ready pods in the Cluster's status (1.30: pkg/utils, PodHealthy).
const podHealthy = "healthy"

// View is the part of its Cluster that the sidecar needs.
type View struct {
	// UID, Name and ResourceVersion identify the object and its version.
	UID, Name, ResourceVersion string
	// WrittenAt is when our field manager has last changed the Cluster, by the API server's clock and in whole seconds;
	// zero if never.
	WrittenAt time.Time
	// Generation changes with the specification.
	Generation int64
	// Operator changes with the version of the operator, or of another plugin that it has loaded for the Cluster. The
	// operator writes these versions before it examines the instances, and so even if one is fenced.
	Operator string
	// Annotations are the object's annotations.
	Annotations map[string]string
	// CurrentPrimary and TargetPrimary are pod names; they differ during a switchover or failover.
	CurrentPrimary, TargetPrimary string
	// PrimarySince is when CurrentPrimary became the primary; zero if not recorded.
	PrimarySince time.Time
	// Healthy is set if the phase is healthy, Restarting if the primary's instance manager restarts PostgreSQL in
	// place.
	Healthy, Restarting bool
	// Instances are the names of the pods.
	Instances []string
	// Ready are the names of the pods that the operator has found ready. A Backup waits for its instance to be one.
	Ready []string
	// Addresses are the reported addresses of the instances, by pod name.
	Addresses map[string]netip.Addr
	// ApplicationDatabase is the database that the Cluster was created with; empty if it names none.
	ApplicationDatabase string
	// Hibernating is set if hibernation is on. Ours is set if our field manager is its only owner: we turned it on, and
	// since then nobody has turned it off and on again or set the same value by server-side apply.
	Hibernating, Ours bool
	// KeepAwakeOurs is set if our field manager is the only owner of the annotation keep-awake-until, so that the
	// channel may remove it.
	KeepAwakeOurs bool
	// Hibernation is the reason of the operator's hibernation condition, which shows its progress; empty without the
	// condition.
	Hibernation string
	// Dozing is set if we have fenced the instance: the cluster dozes, unless hibernation is on. DozingSince is when,
	// as recorded; Stopped is the UID of the pod in which PostgreSQL is recorded as stopped since.
	Dozing      bool
	DozingSince time.Time
	Stopped     string
	// RestartFailed is the UID of the pod in which PostgreSQL is recorded as not started again after a doze.
	RestartFailed string
	// Counts is what the sidecar counted before the last hibernation; empty if we have not written it.
	Counts string
	// ForeignMarks is set if annotations of a doze are on the Cluster and none of them is ours, as after its YAML was
	// exported and applied again.
	ForeignMarks bool
	// FenceApplied is set if a person's manifest contains the fence, so that one of ours would count as theirs.
	FenceApplied bool
	// PluginListed is set if the Cluster lists the plugin as enabled.
	PluginListed bool
	// Each of ReplicaCluster, Fenced, Maintenance, ReconciliationDisabled and ArchivingFailing forbids sleep.
	ReplicaCluster, Fenced, Maintenance, ReconciliationDisabled, ArchivingFailing bool
	// ShortSwitchoverDelay is set if the instance manager gives a fenced PostgreSQL less than a minute to stop, and
	// then stops it immediately.
	ShortSwitchoverDelay bool
}

// minSwitchoverDelay is how many seconds the fast stop of a fence must have until the instance manager stops PostgreSQL
// immediately, which empties unlogged tables (1.30: TryShuttingDownFastImmediate in
// pkg/management/postgres/instance.go). On a heavily overloaded machine, a prepared stop has taken 13 seconds.
const minSwitchoverDelay = 60

// Before reports whether the view is older than another of the same Cluster. resourceVersions are increasing numbers
// (apimachinery: util/resourceversion); a view with any other resourceVersion is not older.
func (v View) Before(other View) bool {
	order, err := resourceversion.CompareResourceVersion(v.ResourceVersion, other.ResourceVersion)
	return err == nil && order < 0 && v.UID == other.UID
}

// Untouched reports whether hibernation is on but the operator has not yet deleted anything, as of this view. The
// operator adds the condition before it deletes the first pod. But it deletes that pod in the same reconciliation in
// which it changes the reason from WaitingForHealthy, and writes the change only later (1.30: updateResourceStatus
// compares the status with a copy that shares its conditions). So once the cluster is healthy it may have begun.
func (v View) Untouched() bool {
	return v.Hibernating && (v.Hibernation == "" || v.Hibernation == contract.HibernationWaitingForHealthy && !v.Healthy)
}

// Blockers returns the Cluster's own reasons against sleep, if the given pod decides.
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
		{v.Fenced && !v.Dozing, idle.ReasonFenced},
		{v.Dozing, idle.ReasonDozing},
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
	var cluster Cluster
	if err := c.read("clusters").Name(c.identity.Cluster).Do(ctx).Into(&cluster); err != nil {
		return View{}, fmt.Errorf("read the Cluster: %w", classify(err))
	}
	return viewOf(&cluster), nil
}

func viewOf(c *Cluster) View {
	view := View{
		UID: string(c.UID), Name: c.Name, Generation: c.Generation, ResourceVersion: c.ResourceVersion,
		Annotations:    c.Annotations,
		CurrentPrimary: c.Status.CurrentPrimary, TargetPrimary: c.Status.TargetPrimary,
		Healthy: c.Status.Phase == phaseHealthy, Restarting: c.Status.Phase == phaseRestarting,
		Instances: c.Status.InstanceNames, Ready: c.Status.InstancesStatus[podHealthy], Addresses: addresses(c),
		ApplicationDatabase:    applicationDatabase(c),
		Operator:               operator(c),
		Hibernating:            c.Annotations[contract.AnnotationHibernation] == "on",
		PluginListed:           slices.ContainsFunc(c.Spec.Plugins, isOurs),
		ReplicaCluster:         replica(c),
		Fenced:                 fenced(c.Annotations[contract.AnnotationFencedInstances]),
		ReconciliationDisabled: c.Annotations[contract.AnnotationReconciliationLoop] == contract.ReconciliationLoopDisabled,
		Maintenance:            c.Spec.NodeMaintenanceWindow.InProgress,
		ShortSwitchoverDelay:   c.Spec.SwitchoverDelay > 0 && c.Spec.SwitchoverDelay < minSwitchoverDelay,
	}
	for i := range c.ManagedFields {
		if entry := &c.ManagedFields[i]; entry.Manager == contract.FieldManager && entry.Time != nil &&
			entry.Time.After(view.WrittenAt) {
			view.WrittenAt = entry.Time.Time
		}
	}
	view.Ours = view.Hibernating &&
		contract.SetByUs(c.ManagedFields, "metadata", "annotations", contract.AnnotationHibernation)
	view.KeepAwakeOurs = contract.SetByUs(c.ManagedFields, "metadata", "annotations", contract.AnnotationKeepAwakeUntil)
	view.Dozing = contract.Dozes(c.Annotations, c.ManagedFields)
	view.ForeignMarks = foreignMarks(c)
	if contract.SetByUs(c.ManagedFields, "metadata", "annotations", contract.AnnotationCounts) {
		view.Counts = c.Annotations[contract.AnnotationCounts]
	}
	view.FenceApplied = contract.FenceApplied(c.Annotations)
	view.PrimarySince, _ = time.Parse(time.RFC3339, c.Status.CurrentPrimaryTimestamp)
	view.DozingSince, _ = time.Parse(time.RFC3339, c.Annotations[contract.AnnotationDozingSince])
	view.Stopped = c.Annotations[contract.AnnotationPostgresStopped]
	view.RestartFailed = c.Annotations[contract.AnnotationRestartFailed]
	for _, condition := range c.Status.Conditions {
		view.ArchivingFailing = view.ArchivingFailing ||
			condition.Type == "ContinuousArchiving" && condition.Status == "False"
		if condition.Type == contract.ConditionHibernation {
			view.Hibernation = condition.Reason
		}
	}
	return view
}

func foreignMarks(c *Cluster) bool {
	there := false
	for _, key := range [...]string{contract.AnnotationDozingSince, contract.AnnotationPostgresStopped, contract.AnnotationRestartFailed} {
		if _, ok := c.Annotations[key]; !ok {
			continue
		}
		if there = true; contract.SetByUs(c.ManagedFields, "metadata", "annotations", key) {
			return false
		}
	}
	return there
}

// addresses returns the addresses that the instances reported; nil if none.
func addresses(c *Cluster) map[string]netip.Addr {
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

// operator names what the operator makes instances of and no generation shows: its own version, the image, which a
// catalog may change, the time of a requested restart, and the versions of its other plugins. A new version of this one
// replaces no instance.
func operator(c *Cluster) string {
	versions := c.Status.CloudNativePGCommitHash + " " + c.Status.Image + " " + c.Annotations[contract.AnnotationRestartedAt]
	for _, plugin := range c.Status.PluginStatus {
		if plugin.Name == contract.PluginName {
			continue
		}
		versions += " " + plugin.Name + "=" + plugin.Version
	}
	return versions
}

// isOurs reports whether a plugin listed in the Cluster is this one, enabled.
func isOurs(plugin Plugin) bool {
	return plugin.Name == contract.PluginName && (plugin.Enabled == nil || *plugin.Enabled)
}

// applicationDatabase follows Cluster.GetApplicationDatabaseName (1.30: api/v1/cluster_funcs.go). The operator's
// webhook fills in "app" where the Cluster names none, except for an import of a whole server.
func applicationDatabase(c *Cluster) string {
	bootstrap := c.Spec.Bootstrap
	return cmp.Or(bootstrap.Recovery.Database, bootstrap.PgBaseBackup.Database, bootstrap.InitDB.Database)
}

// replica follows Cluster.IsReplica (1.30: api/v1/cluster_funcs.go): spec.replica.enabled or, without one, whether the
// primary of the distributed topology is another cluster.
func replica(c *Cluster) bool {
	replica := c.Spec.Replica
	if replica == nil {
		return false
	}
	if replica.Enabled != nil {
		return *replica.Enabled
	}
	return replica.Primary != cmp.Or(replica.Self, c.Name)
}

// fenced parses the annotation's JSON list of instances, or "*". A value that cannot be parsed forbids sleep.
func fenced(value string) bool {
	if value == "" {
		return false
	}
	var instances []string
	return json.Unmarshal([]byte(value), &instances) != nil || len(instances) != 0
}
