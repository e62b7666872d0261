package contract

import "time"

// Prefix is the prefix of this project's annotations; their names are those of xataio/cnpg-i-scale-to-zero.
const Prefix = "xata.io/scale-to-zero-"

// Annotations that people set on a Cluster. docs/reference/configuration.md has a table of these comments; their last
// sentences are the defaults.
const (
	// AnnotationEnabled turns the feature on with `"true"`, and off with `"false"`. With [EnabledObserve] everything is
	// watched and decided, and nothing is done. Default: `"false"`.
	AnnotationEnabled = Prefix + "enabled"
	// AnnotationInactivityMinutes is the threshold: a positive number of minutes, at most 525600. Decimals are allowed:
	// `"0.5"` is 30 seconds. Default: `"30"`.
	AnnotationInactivityMinutes = Prefix + "inactivity-minutes"
	// AnnotationDozeMinutes is how long a cluster of one instance must be idle before it dozes: PostgreSQL is stopped,
	// and its pod is kept. A number of minutes, at least `"0.5"`, and less than that of [AnnotationInactivityMinutes],
	// after which the cluster hibernates; [None]: it does not doze. Default: [None].
	AnnotationDozeMinutes = Prefix + "doze-minutes"
	// AnnotationDatabase names the database whose channel is listened to; empty: none. Default: the application
	// database, if the Cluster names one.
	AnnotationDatabase = Prefix + "database"
	// AnnotationActivity specifies what counts as activity: with [ActivityConnections] any open client session, with
	// [ActivityQueries] a session that sits idle only up to its last statement. Default: [ActivityConnections].
	AnnotationActivity = Prefix + "activity"
	// AnnotationIgnore lists sessions that never count, such as `user=monitoring application=datadog*;
	// client=192.0.2.10`. Default: [None].
	AnnotationIgnore = Prefix + "ignore"
	// AnnotationKeepAwake lists times of the week without sleep, such as `Mon-Fri 08:00-18:00 Europe/Berlin; Sat
	// 10:00-12:00 UTC`. Default: [None].
	AnnotationKeepAwake = Prefix + "keep-awake"
	// AnnotationWake specifies what wakes the cluster: [WakeManual], for only people, or a list of [WakeOnConnect], a
	// client that connects, [WakeOnWindow], the beginning of a `keep-awake` window, [WakeOnObjects], a Database,
	// DatabaseRole, Publication or Subscription that is to be applied or deleted, and [WakeOnBackup], a ScheduledBackup
	// that is due. Default: `on-connect,objects`.
	AnnotationWake = Prefix + "wake"
	// AnnotationKeepAwakeUntil allows no sleep before this time of RFC 3339, at most 7 days ahead; `keep-awake` of the
	// channel and of the command line write it too. Default: none.
	AnnotationKeepAwakeUntil = Prefix + "keep-awake-until"
	// AnnotationGatewayAddress specifies what happens if `pg_hba` or `podSelectorRefs` distinguish the client's address
	// from the gateway's: with [GatewayReject] a client that woke the cluster is asked to reconnect, with
	// [GatewayAccept] it is routed through the gateway, whose address PostgreSQL then sees. Default: [GatewayReject].
	AnnotationGatewayAddress = Prefix + "gateway-address"
	// AnnotationPoolers specifies what becomes of the cluster's Poolers while it hibernates: with [PoolersSleep] they have
	// no instances until it wakes, with [None] they keep them. Default: [None].
	AnnotationPoolers = Prefix + "poolers"
	// AnnotationBackupMaxAge is how old the last completed Backup of a sleeping cluster may become, a whole number of
	// hours or days, at least `1h` and at most `365d`, such as `7d`: then the cluster is woken, and the plugin creates a
	// Backup of the same kind. [None]: it is not woken for that, and no alert compares the age with the retention policy
	// either. Wakes nothing if a person hibernated the cluster, or `wake` is `manual`. Default: none.
	AnnotationBackupMaxAge = Prefix + "backup-max-age"
	// AnnotationSidecarUpdate specifies when a new sidecar reaches the running instances: with [UpdateOnRestart] the
	// pod that is created next, with [UpdateImmediate] by a rolling update of the operator. Default: the setting
	// `SIDECAR_UPDATE`.
	AnnotationSidecarUpdate = Prefix + "sidecar-update"
	// AnnotationSleepRequested asks for sleep as soon as nothing is in use: the time of the request in RFC 3339, at
	// most 5 minutes ago or ahead. An older request has no effect. Default: none.
	AnnotationSleepRequested = Prefix + "sleep-requested"
	// AnnotationWakeRequested asks for a wake, and for no sleep in the 5 minutes after: the time of the request in RFC
	// 3339, at most 5 minutes ago or ahead. An older request has no effect. Wakes nothing if a person hibernated the
	// cluster, or `wake` is `manual`. Default: none.
	AnnotationWakeRequested = Prefix + "wake-requested"
)

// Annotations that the plugin and the sidecars write.
const (
	// AnnotationAnnounced announces that an instance is about to put its cluster to sleep.
	AnnotationAnnounced = Prefix + "announced"
	// AnnotationGatewayReady is the plugin's acknowledgement of an announcement.
	AnnotationGatewayReady = Prefix + "gateway-ready"
	// AnnotationGatewayHolding is the announcement of a doze for which the gateway holds every client: no Service leads
	// to the instance any more.
	AnnotationGatewayHolding = Prefix + "gateway-holding"
	// AnnotationDozingSince is the time, in RFC 3339, at which the instance was fenced so that the cluster dozes.
	AnnotationDozingSince = Prefix + "dozing-since"
	// AnnotationPostgresStopped is the UID of the pod in which PostgreSQL has stopped for the doze, or `none` if no pod
	// of an instance was left.
	AnnotationPostgresStopped = Prefix + "postgres-stopped"
	// AnnotationRestartFailed is the UID of the pod in which PostgreSQL was not started again after a doze. The plugin
	// deletes that pod, and no other for the same wake.
	AnnotationRestartFailed = Prefix + "restart-failed"
	// AnnotationAsleepSince is the time, in RFC 3339, at which the cluster was put to sleep.
	AnnotationAsleepSince = Prefix + "asleep-since"
	// AnnotationAsleepReason is why it was put to sleep.
	AnnotationAsleepReason = Prefix + "asleep-reason"
	// AsleepReasonUnusedPrefix is the beginning of that reason if the cluster was not used after a wake.
	AsleepReasonUnusedPrefix = "unused since "
	// AsleepReasonIgnoredSuffix is the end of such a reason if the client that woke it had a session that the
	// annotation excludes.
	AsleepReasonIgnoredSuffix = " by a client whose session is ignored"
	// AnnotationLastWake names who woke the cluster last, and when.
	AnnotationLastWake = Prefix + "last-wake"
	// AnnotationUnroutableServices names the Services whose clients could not be routed to the gateway, and why: they
	// keep the cluster awake.
	AnnotationUnroutableServices = Prefix + "unroutable-services"
	// AnnotationDefaults contains, as JSON, the annotations of the Cluster's Namespace. They apply where the Cluster does
	// not set the same annotation. A sidecar of an earlier version would take a name with the prefix for a mistake.
	AnnotationDefaults = "scale-to-zero.xata.io/defaults"
	// AnnotationCounts contains, as JSON, how the cluster would have slept at other thresholds, up to its hibernation: its
	// next pod continues from there. A sidecar of an earlier version would take a name with the prefix for a mistake.
	AnnotationCounts = "scale-to-zero.xata.io/counts"
	// AnnotationSuspended marks a ScheduledBackup that was suspended for the sleep, with the time in RFC 3339.
	AnnotationSuspended = Prefix + "suspended"
	// AnnotationInstances marks a Pooler that was scaled to zero for the sleep, with the number of instances that it had.
	AnnotationInstances = Prefix + "instances"
)

// AnnotationUnroutable, on a Service, specifies whether its cluster may sleep although the Service's clients cannot be
// routed to the gateway: [UnroutableAccept] or [UnroutableReject]. Default: [UnroutableReject].
const AnnotationUnroutable = Prefix + "unroutable"

// Values of [AnnotationUnroutable].
const (
	// UnroutableAccept: it may sleep, and the clients are refused while it does.
	UnroutableAccept = "accept"
	// UnroutableReject: it stays awake.
	UnroutableReject = "reject"
)

// EnabledObserve is the third value of [AnnotationEnabled]: how the cluster would have slept is only counted.
const EnabledObserve = "observe"

// None is the value of [AnnotationDozeMinutes], [AnnotationIgnore], [AnnotationKeepAwake], [AnnotationPoolers] and
// [AnnotationBackupMaxAge] that overrides the Namespace's default with nothing.
const None = "none"

// Values of [AnnotationActivity].
const (
	// ActivityConnections: any open client session.
	ActivityConnections = "connections"
	// ActivityQueries: an idle session only until the end of its last statement.
	ActivityQueries = "queries"
)

// Values of [AnnotationWake].
const (
	// WakeOnConnect: a client that connects.
	WakeOnConnect = "on-connect"
	// WakeOnWindow: a window of [AnnotationKeepAwake] that opens.
	WakeOnWindow = "window"
	// WakeOnObjects: an object that only a running instance can apply or delete.
	WakeOnObjects = "objects"
	// WakeOnBackup: a ScheduledBackup that is due.
	WakeOnBackup = "backup"
	// WakeManual: people only.
	WakeManual = "manual"
)

// Values of [AnnotationGatewayAddress].
const (
	// GatewayAccept: clients are routed through the gateway anyway.
	GatewayAccept = "accept"
	// GatewayReject: clients are asked to reconnect once the cluster is awake.
	GatewayReject = "reject"
)

// PoolersSleep is the value of [AnnotationPoolers] with which Poolers are scaled to zero while the cluster hibernates.
const PoolersSleep = "sleep"

// Limits of the annotations' values.
const (
	// MaxKeepAwake is the longest time for which a cluster can be kept awake.
	MaxKeepAwake = 7 * 24 * time.Hour
	// LongestKeepAwake is the longest that a program of this project sets: the clock of one that reads it may be behind,
	// and a time further ahead than MaxKeepAwake would turn the feature off.
	LongestKeepAwake = MaxKeepAwake - time.Minute
	// MaxRequestAge is how old a request to sleep or to wake may be when it is first read, and how far in the future.
	// An older request is not an error: it has been served, or had no effect.
	MaxRequestAge = 5 * time.Minute
)

// Values of [AnnotationSidecarUpdate], and of the plugin's setting that applies without that annotation.
const (
	// UpdateOnRestart: when the pod is next recreated, for whatever reason.
	UpdateOnRestart = "on-restart"
	// UpdateImmediate: the operator replaces the instances.
	UpdateImmediate = "immediate"
)

// CloudNativePG's annotations by which a cluster is put to sleep, and by which a person has the operator leave it
// alone.
const (
	// AnnotationHibernation is "on" or "off".
	AnnotationHibernation = "cnpg.io/hibernation"
	// ConditionHibernation is the type of the operator's condition about it. Its reason is HibernationWaitingForHealthy
	// while the operator has not begun, HibernationDeletingPods, and then Hibernated (1.30:
	// pkg/reconciler/hibernation).
	ConditionHibernation         = AnnotationHibernation
	HibernationWaitingForHealthy = "WaitingForHealthy"
	HibernationDeletingPods      = "DeletingPods"
	Hibernated                   = "Hibernated"
	// AnnotationFencedInstances lists in JSON the instances whose PostgreSQL the instance manager stops and keeps
	// stopped.
	AnnotationFencedInstances = "cnpg.io/fencedInstances"
	// FencedInstancesAll is its value for every instance, and the only one that this project writes: the operator
	// mistakes a list of names for a fence of its own cold snapshots, and removes it.
	FencedInstancesAll = `["*"]`
	// AnnotationRestartedAt is when a restart of the instances was requested, as by kubectl cnpg restart.
	AnnotationRestartedAt = "kubectl.kubernetes.io/restartedAt"
	// AnnotationReconciliationLoop is ReconciliationLoopDisabled if the operator is not to reconcile the Cluster.
	AnnotationReconciliationLoop = "cnpg.io/reconciliationLoop"
	ReconciliationLoopDisabled   = "disabled"
)
