package contract

import "time"

// Prefix is the common beginning of the annotations that are ours; the names are those of xataio/cnpg-i-scale-to-zero.
const Prefix = "xata.io/scale-to-zero-"

// Annotations that people set on a Cluster. docs/configuration.md has these comments as a table, and their last sentences as the
// defaults.
const (
	// AnnotationEnabled turns the feature on: `"true"` or `"false"`. Default: `"false"`.
	AnnotationEnabled = Prefix + "enabled"
	// AnnotationInactivityMinutes is the threshold: a positive number of minutes, at most 525600. Decimals are allowed: `"0.5"` is
	// 30 seconds. Default: `"30"`.
	AnnotationInactivityMinutes = Prefix + "inactivity-minutes"
	// AnnotationDatabase names the database whose channel is listened to; empty: none. Default: the application database, if the Cluster
	// names one.
	AnnotationDatabase = Prefix + "database"
	// AnnotationActivity says what counts as activity: with [ActivityConnections] any open client session, with [ActivityQueries] a session
	// that sits idle only up to its last statement. Default: [ActivityConnections].
	AnnotationActivity = Prefix + "activity"
	// AnnotationIgnore lists sessions that never count, such as `user=monitoring application=datadog*; client=10.0.0.0/8`. Default: none.
	AnnotationIgnore = Prefix + "ignore"
	// AnnotationKeepAwake lists times of the week without sleep, such as `Mon-Fri 08:00-18:00 Europe/Berlin; Sat 10:00-12:00 UTC`.
	// Default: none.
	AnnotationKeepAwake = Prefix + "keep-awake"
	// AnnotationWake says what wakes the cluster: with [WakeOnConnect] a client that connects, with [WakeManual] only people.
	// Default: [WakeOnConnect].
	AnnotationWake = Prefix + "wake"
	// AnnotationKeepAwakeUntil allows no sleep before this time of RFC 3339, at most 7 days ahead; `keep-awake` of the channel and of the
	// command line write it too. Default: none.
	AnnotationKeepAwakeUntil = Prefix + "keep-awake-until"
	// AnnotationGatewayAddress says what happens where `pg_hba` or `podSelectorRefs` tell addresses apart: with [GatewayReject] a client
	// that woke the cluster is told to connect again, with [GatewayAccept] it is routed through the gateway, whose address PostgreSQL
	// then sees. Default: [GatewayReject].
	AnnotationGatewayAddress = Prefix + "gateway-address"
	// AnnotationSidecarUpdate says when a new sidecar reaches the running instances: with [UpdateOnRestart] the pod that is made next,
	// with [UpdateImmediate] by a rolling update of the operator. Default: the setting `SIDECAR_UPDATE`.
	AnnotationSidecarUpdate = Prefix + "sidecar-update"
	// AnnotationSleepRequested asks for sleep as soon as nothing is in use: the time of the request in RFC 3339, at most 5 minutes ago or
	// ahead. An older one means nothing. Default: none.
	AnnotationSleepRequested = Prefix + "sleep-requested"
)

// Annotations that the parts write.
const (
	// AnnotationAnnounced says that an instance is about to put its cluster to sleep.
	AnnotationAnnounced = Prefix + "announced"
	// AnnotationGatewayReady is the plugin's acknowledgement of an announcement.
	AnnotationGatewayReady = Prefix + "gateway-ready"
	// AnnotationAsleepSince is the time, in RFC 3339, at which the cluster was put to sleep.
	AnnotationAsleepSince = Prefix + "asleep-since"
	// AnnotationAsleepReason says why it was put to sleep.
	AnnotationAsleepReason = Prefix + "asleep-reason"
	// AsleepUnused is how that reason begins of a cluster that a connection woke and that nobody used then.
	AsleepUnused = "unused since "
	// AnnotationLastWake names who woke the cluster last, and when.
	AnnotationLastWake = Prefix + "last-wake"
	// AnnotationUnroutableServices names the Services whose clients could not be routed to the gateway, and why: they keep the cluster
	// awake.
	AnnotationUnroutableServices = Prefix + "unroutable-services"
	// AnnotationSuspended marks a ScheduledBackup that was suspended for the sleep, with the time in RFC 3339.
	AnnotationSuspended = Prefix + "suspended"
)

// AnnotationUnroutable, on a Service, says whether its cluster may sleep although the Service's clients cannot be routed to the gateway:
// [UnroutableAccept] or [UnroutableReject]. Default: [UnroutableReject].
const AnnotationUnroutable = Prefix + "unroutable"

// Values of [AnnotationUnroutable].
const (
	// UnroutableAccept: it may, and they are refused while it sleeps.
	UnroutableAccept = "accept"
	// UnroutableReject: it stays awake.
	UnroutableReject = "reject"
)

// Values of [AnnotationActivity].
const (
	// ActivityConnections: any open client session.
	ActivityConnections = "connections"
	// ActivityQueries: a session that sits idle only up to its last statement.
	ActivityQueries = "queries"
)

// Values of [AnnotationWake].
const (
	// WakeOnConnect: a client that connects.
	WakeOnConnect = "on-connect"
	// WakeManual: people only.
	WakeManual = "manual"
)

// Values of [AnnotationGatewayAddress].
const (
	// GatewayAccept: clients are routed through the gateway all the same.
	GatewayAccept = "accept"
	// GatewayReject: they are asked to connect again, once the cluster is awake.
	GatewayReject = "reject"
)

// Limits of what the annotations say.
const (
	// LongestKeepAwake is how far ahead a time until which a cluster is kept awake may be.
	LongestKeepAwake = 7 * 24 * time.Hour
	// OldestRequest is for how long a request to sleep counts before it is seen, and how far ahead of this clock the requester's
	// may be. An older one is no mistake: it has been answered, or came to nothing.
	OldestRequest = 5 * time.Minute
)

// Values of [AnnotationSidecarUpdate], and of the plugin's setting that holds where the annotation is not there.
const (
	// UpdateOnRestart: with the pod that is made next, for whatever reason.
	UpdateOnRestart = "on-restart"
	// UpdateImmediate: the operator replaces the instances for it.
	UpdateImmediate = "immediate"
)

// AnnotationHibernation is CloudNativePG's switch, "on" or "off".
const AnnotationHibernation = "cnpg.io/hibernation"
