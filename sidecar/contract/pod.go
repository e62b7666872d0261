package contract

// What the plugin writes into a pod for the sidecar. It is part of the answer to EVALUATE, which the operator compares with that
// of an earlier plugin: any change rolls every instance.
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
	// EnvCNPGGroup and EnvCNPGVersion are the variables for the API of the Cluster resource.
	EnvCNPGGroup   = "CUSTOM_CNPG_GROUP"
	EnvCNPGVersion = "CUSTOM_CNPG_VERSION"
	// EnvMemoryLimit is the variable for the container's memory limit in bytes.
	EnvMemoryLimit = "MEMORY_LIMIT"

	// EnvReadinessPort is the variable for the port that the container's readiness probe asks, [ReadinessPort]. It is only set, when
	// the pod is created, together with that probe: EVALUATE's answer has neither.
	EnvReadinessPort = "READINESS_PORT"
	// EnvDozeMemoryRequest is the variable for PostgreSQL's memory request while the cluster dozes, set together with
	// [EnvReadinessPort]; without it the request stays as it is.
	EnvDozeMemoryRequest = "DOZE_MEMORY_REQUEST"

	// SidecarDirectory is where the sidecar's own volume is mounted, TokenDirectory where its token is.
	SidecarDirectory = "/scale-to-zero"
	TokenDirectory   = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// PostgresContainer is the operator's name for PostgreSQL's container (1.30: pkg/specs/pods.go), and AnnotationPodSpec the pod's
// annotation with the specification from which the operator made it (1.30: pkg/utils/labels_annotations.go).
const (
	PostgresContainer = "postgres"
	AnnotationPodSpec = "cnpg.io/podSpec"
)

// CloudNativePG's API of the Cluster resource, and the port of its instances (1.30: api/v1, pkg/postgres).
const (
	DefaultCNPGGroup   = "postgresql.cnpg.io"
	DefaultCNPGVersion = "v1"
	PostgresPort       = 5432
)
