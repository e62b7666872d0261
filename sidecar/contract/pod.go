package contract

// Environment variables and mounts of the sidecar. They are part of the answer to the operator's EVALUATE call, unless
// stated otherwise. The operator compares that answer with the one of an earlier plugin, so any change restarts every
// instance.
const (
	// EnvNamespace, EnvCluster, EnvPod and EnvPodUID are the variables that identify the instance.
	EnvNamespace = "NAMESPACE"
	EnvCluster   = "CLUSTER_NAME"
	EnvPod       = "POD_NAME"
	EnvPodUID    = "POD_UID"
	// EnvSocketDirectory and EnvPostgresPort are the variables for PostgreSQL's socket, as in its own container.
	EnvSocketDirectory = "PGHOST"
	EnvPostgresPort    = "PGPORT"
	// EnvPreStopMarker is the variable with the path of the file that PostgreSQL's preStop hook checks.
	EnvPreStopMarker = "PRESTOP_MARKER"
	// EnvLogLevel is the variable for the log level.
	EnvLogLevel = "LOG_LEVEL"
	// EnvCNPGGroup and EnvCNPGVersion are the variables for the API group and version of the Cluster resource.
	EnvCNPGGroup   = "CUSTOM_CNPG_GROUP"
	EnvCNPGVersion = "CUSTOM_CNPG_VERSION"
	// EnvMemoryLimit is the variable for the container's memory limit in bytes.
	EnvMemoryLimit = "MEMORY_LIMIT"

	// EnvReadinessPort is the variable for the port of the container's readiness probe, [ReadinessPort]. It is set
	// together with that probe, and only in the answer to CREATE, not in that to EVALUATE.
	EnvReadinessPort = "READINESS_PORT"
	// EnvDozeMemoryRequest is the variable for PostgreSQL's memory request while the cluster dozes, set together with
	// [EnvReadinessPort]; without it the request stays as it is.
	EnvDozeMemoryRequest = "DOZE_MEMORY_REQUEST"

	// SidecarDirectory is where the sidecar's own volume is mounted, and TokenDirectory where that of its token is.
	SidecarDirectory = "/scale-to-zero"
	TokenDirectory   = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// PostgresContainer is the operator's name for PostgreSQL's container (1.30: pkg/specs/pods.go), and AnnotationPodSpec
// the pod's annotation with the specification from which the operator made it (1.30: pkg/utils/labels_annotations.go).
const (
	PostgresContainer = "postgres"
	AnnotationPodSpec = "cnpg.io/podSpec"
)

// CloudNativePG's API group and version of the Cluster resource, and PostgreSQL's port (1.30: api/v1, pkg/postgres).
const (
	DefaultCNPGGroup   = "postgresql.cnpg.io"
	DefaultCNPGVersion = "v1"
	PostgresPort       = 5432
)
