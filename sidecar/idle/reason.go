package idle

// Reason says why a cluster is awake, or that it may sleep. The set is closed: it is used in logs, metrics, Events and
// docs/guides/troubleshooting.md.
type Reason string

// The reasons. If several apply, the first in this order is reported first.
const (
	ReasonInvalidAnnotation      Reason = "invalid_annotation"
	ReasonDisabled               Reason = "disabled"
	ReasonPluginNotListed        Reason = "plugin_not_listed"
	ReasonAlreadyHibernating     Reason = "already_hibernating"
	ReasonDozing                 Reason = "dozing"
	ReasonNotPrimary             Reason = "not_primary"
	ReasonSwitchover             Reason = "switchover"
	ReasonUnhealthy              Reason = "unhealthy"
	ReasonReconciliationDisabled Reason = "reconciliation_disabled"
	ReasonFenced                 Reason = "fenced"
	ReasonMaintenance            Reason = "maintenance"
	ReasonReplicaCluster         Reason = "replica_cluster"
	ReasonArchivingFailing       Reason = "archiving_failing"
	ReasonKeepAwakeWindow        Reason = "keep_awake_window"
	ReasonKeepAwakeUntil         Reason = "keep_awake_until"
	ReasonUnknown                Reason = "unknown"
	ReasonActive                 Reason = "active"
	ReasonReplicationClient      Reason = "replication_client"
	ReasonBackgroundWorker       Reason = "background_worker"
	ReasonConnecting             Reason = "connecting"
	ReasonClientsReturn          Reason = "clients_return"
	ReasonSiblingUnknown         Reason = "sibling_unknown"
	ReasonSiblingOutdated        Reason = "sibling_outdated"
	ReasonSiblingActive          Reason = "sibling_active"
	ReasonServiceUnroutable      Reason = "service_unroutable"
	ReasonGatewayUnavailable     Reason = "gateway_unavailable"
	ReasonMinimumUptime          Reason = "minimum_uptime"
	ReasonWaiting                Reason = "waiting"
	ReasonPreparedTransaction    Reason = "prepared_transaction"
	ReasonAdvisoryLock           Reason = "advisory_lock"
	ReasonBaseBackup             Reason = "base_backup"
	ReasonProgress               Reason = "progress"
	ReasonWraparoundVacuum       Reason = "wraparound_vacuum"
	ReasonSubscription           Reason = "subscription"
	ReasonLogicalSlot            Reason = "logical_slot"
	ReasonBackupRunning          Reason = "backup_running"
	ReasonStandbys               Reason = "standbys"
	ReasonWakeManual             Reason = "wake_manual"
	ReasonPodMadeBefore          Reason = "pod_made_before"
	ReasonLoginsUnseen           Reason = "logins_unseen"
	ReasonSwitchoverDelay        Reason = "switchover_delay"
	ReasonGrowthPending          Reason = "growth_pending"
	ReasonArchiverBehind         Reason = "archiver_behind"
	ReasonArchiverSlow           Reason = "archiver_slow"
	ReasonEndpointsRemain        Reason = "endpoints_remain"
	ReasonObserved               Reason = "observed"
	ReasonIdle                   Reason = "idle"
)

// reasons has them in the same order, with what docs/guides/troubleshooting.md and the Events say about each.
var reasons = []struct {
	reason      Reason
	description string
}{
	{ReasonInvalidAnnotation, "an annotation is invalid, so the feature is off"},
	{ReasonDisabled, "the annotation that turns the feature on is neither \"true\" nor \"observe\""},
	{ReasonPluginNotListed, "the Cluster no longer lists the plugin"},
	{ReasonAlreadyHibernating, "hibernation is already requested"},
	{ReasonDozing, "the cluster dozes: PostgreSQL is stopped, and its pod is kept"},
	{ReasonNotPrimary, "this instance is not the primary; only the primary decides"},
	{ReasonSwitchover, "another instance is becoming the primary"},
	{ReasonUnhealthy, "the Cluster's phase is not healthy"},
	{ReasonReconciliationDisabled, "the operator's reconciliation of the Cluster is disabled"},
	{ReasonFenced, "an instance is fenced"},
	{ReasonMaintenance, "a node maintenance window is in progress"},
	{ReasonReplicaCluster, "the Cluster is a replica of another one, which would retain WAL for it"},
	{ReasonArchivingFailing, "WAL archiving is failing"},
	{ReasonKeepAwakeWindow, "a window of the keep-awake annotation is open"},
	{ReasonKeepAwakeUntil, "the keep-awake-until time has not passed, or a wake was requested less than 5 minutes ago"},
	{ReasonUnknown, "the sidecar cannot tell whether the database is in use, and unknown is never idle"},
	{ReasonActive, "a client session is open, or with activity=queries runs a statement or a transaction"},
	{ReasonReplicationClient, "a replication client that is not a standby of this cluster is connected"},
	{ReasonBackgroundWorker, "a background worker of an extension is active"},
	{ReasonConnecting, "an open connection is not a session: its client is logging in or leaving"},
	{ReasonClientsReturn, "with activity=queries the cluster fell asleep three times in a row and was woken within seconds each time, by a client that reconnects when its idle session is terminated; such a session is open"},
	{ReasonSiblingUnknown, "the primary's sidecar cannot tell whether another instance is in use"},
	{ReasonSiblingOutdated, "another instance runs an older sidecar, which does not sample on demand; it gets a newer one with its next restart"},
	{ReasonSiblingActive, "another instance is in use"},
	{ReasonServiceUnroutable, "the plugin cannot route the clients of a Service to the gateway; the annotation xata.io/scale-to-zero-unroutable-services names it"},
	{ReasonGatewayUnavailable, "no replica of the plugin has confirmed in time that it can wake the cluster; wake=manual needs none"},
	{ReasonMinimumUptime, "sleep was requested, but the cluster has not been up for five minutes, or the threshold if that is shorter"},
	{ReasonWaiting, "it has not been idle for the threshold yet"},
	{ReasonPreparedTransaction, "a transaction is prepared for a two-phase commit"},
	{ReasonAdvisoryLock, "a session holds an advisory lock"},
	{ReasonBaseBackup, "a base backup is being streamed"},
	{ReasonProgress, "a command such as VACUUM, CREATE INDEX or COPY is in progress"},
	{ReasonWraparoundVacuum, "an anti-wraparound autovacuum is running"},
	{ReasonSubscription, "a logical subscription is enabled"},
	{ReasonLogicalSlot, "a logical replication slot is in use"},
	{ReasonBackupRunning, "a Backup is pending or running"},
	{ReasonStandbys, "the cluster has standbys, and only a cluster of one instance dozes"},
	{ReasonWakeManual, "without on-connect in the annotation wake no client could end a doze"},
	{ReasonPodMadeBefore, "the pod was created before the annotation doze-minutes was set, and has no readiness probe to leave its Services; the next pod has one"},
	{ReasonLoginsUnseen, "the kernel does not report sessions, as with gVisor, so a client that is logging in would not be seen before PostgreSQL is stopped"},
	{ReasonSwitchoverDelay, "spec.switchoverDelay is less than 60 seconds, after which the instance manager stops PostgreSQL immediately, which empties unlogged tables"},
	{ReasonGrowthPending, "the resource requests of the pod have not been restored after a doze; the cluster hibernates after doze-minutes, so that its next pod is scheduled anew"},
	{ReasonArchiverBehind, "WAL is not archived within 10 seconds, so PostgreSQL could not stop soon; the cluster does not sleep meanwhile"},
	{ReasonArchiverSlow, "the archiving of one WAL file takes longer than 2 seconds, for which a client would have to wait while PostgreSQL stops; the cluster does not doze before it has been idle for as long again"},
	{ReasonEndpointsRemain, "a Service still leads to the instance although its pod is not ready, as with publishNotReadyAddresses; the cluster does not doze meanwhile"},
	{ReasonObserved, "the cluster is only observed, and would sleep now with enabled=true"},
	{ReasonIdle, "the cluster has been idle for the threshold and is put to sleep"},
}

// Reasons returns all reasons in order.
func Reasons() []Reason {
	all := make([]Reason, len(reasons))
	for i := range reasons {
		all[i] = reasons[i].reason
	}
	return all
}

// Description describes the reason for docs/guides/troubleshooting.md and the Events.
func (r Reason) Description() string {
	for _, known := range reasons {
		if known.reason == r {
			return known.description
		}
	}
	return ""
}
