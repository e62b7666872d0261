package contract

// What the plugin writes into a pod and the sidecar finds there. It is part of the answer to EVALUATE, which the operator compares
// with that of an earlier plugin: a change of any of it rolls every instance.
const (
	// EnvNamespace, EnvCluster, EnvPod and EnvPodUID name the variables that say which instance this is.
	EnvNamespace = "NAMESPACE"
	EnvCluster   = "CLUSTER_NAME"
	EnvPod       = "POD_NAME"
	EnvPodUID    = "POD_UID"
	// EnvSocketDirectory and EnvPostgresPort name those of PostgreSQL's socket, as in its own container.
	EnvSocketDirectory = "PGHOST"
	EnvPostgresPort    = "PGPORT"
	// EnvMarker names that of the file that PostgreSQL's preStop hook waits by.
	EnvMarker = "FAREWELL_FILE"
	// EnvLogLevel names that of the level of the log.
	EnvLogLevel = "LOG_LEVEL"
	// EnvGroup and EnvVersion name those of the Cluster resource.
	EnvGroup   = "CUSTOM_CNPG_GROUP"
	EnvVersion = "CUSTOM_CNPG_VERSION"
	// EnvMemoryLimit names that of the container's limit in bytes.
	EnvMemoryLimit = "MEMORY_LIMIT"

	// OwnDirectory is where the sidecar's own volume is mounted, TokenDirectory that of its token.
	OwnDirectory   = "/scale-to-zero"
	TokenDirectory = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// What CloudNativePG calls the Cluster resource, and where its instances listen (1.30: api/v1, pkg/postgres).
const (
	DefaultGroup   = "postgresql.cnpg.io"
	DefaultVersion = "v1"
	PostgresPort   = 5432
)
