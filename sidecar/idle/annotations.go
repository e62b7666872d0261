package idle

// Prefix is the common beginning of the annotations that are ours; the names are those of xataio/cnpg-i-scale-to-zero.
const Prefix = "xata.io/scale-to-zero-"

// Annotations that people set on a Cluster.
const (
	// KeyEnabled turns the feature on: "true" or "false".
	KeyEnabled = Prefix + "enabled"
	// KeyInactivityMinutes is the threshold, a positive number of minutes, decimals allowed.
	KeyInactivityMinutes = Prefix + "inactivity-minutes"
	// KeyDatabase names the database whose channel is listened to; empty: none.
	KeyDatabase = Prefix + "database"
	// KeyActivity says what counts as activity.
	KeyActivity = Prefix + "activity"
	// KeyIgnore lists sessions that never count.
	KeyIgnore = Prefix + "ignore"
	// KeyKeepAwake lists windows of time without sleep.
	KeyKeepAwake = Prefix + "keep-awake"
	// KeyWake says how the cluster is woken.
	KeyWake = Prefix + "wake"
	// KeyKeepAwakeUntil is a time until which the cluster stays awake.
	KeyKeepAwakeUntil = Prefix + "keep-awake-until"
	// KeyGatewayAddress says whether clients may be led through the gateway, whose address PostgreSQL then sees, although
	// rules tell addresses apart: "accept" or "reject".
	KeyGatewayAddress = Prefix + "gateway-address"
	// KeySidecarUpdate says when a new sidecar reaches the running instances: [UpdateOnRestart] or [UpdateImmediate]. The plugin
	// obeys it.
	KeySidecarUpdate = Prefix + "sidecar-update"
	// KeySleepRequested asks for sleep as soon as nothing is in use, with the time of the request in RFC 3339. It counts while
	// it is at most [OldestRequest] old.
	KeySleepRequested = Prefix + "sleep-requested"
)

// Annotations that the parts write.
const (
	// KeyAnnounced says that an instance is about to put its cluster to sleep.
	KeyAnnounced = Prefix + "announced"
	// KeyGatewayReady acknowledges an announcement.
	KeyGatewayReady = Prefix + "gateway-ready"
	// KeyAsleepSince is the time, in RFC 3339, at which the cluster was put to sleep.
	KeyAsleepSince = Prefix + "asleep-since"
	// KeyAsleepReason says why it was put to sleep.
	KeyAsleepReason = Prefix + "asleep-reason"
	// KeyLastWake tells who woke the cluster, and when.
	KeyLastWake = Prefix + "last-wake"
	// KeySuspended marks a ScheduledBackup that was suspended by us, with the time in RFC 3339.
	KeySuspended = Prefix + "suspended"
)

// Values of [KeySidecarUpdate], and of the plugin's setting that holds where the annotation is not there.
const (
	// UpdateOnRestart: with the pod that is made next, for whatever reason.
	UpdateOnRestart = "on-restart"
	// UpdateImmediate: the operator replaces the instances for it.
	UpdateImmediate = "immediate"
)

// KeyHibernation is CloudNativePG's switch, "on" or "off".
const KeyHibernation = "cnpg.io/hibernation"
