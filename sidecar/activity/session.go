// Package activity judges what the rows of pg_stat_activity say about the use of a PostgreSQL instance. It is pure.
//
// The predicate is inverted: it lists who is provably PostgreSQL itself or the infrastructure around it, and counts
// everybody else, whatever state they are in. A state that is not known counts.
package activity

import (
	"slices"
	"strings"
)

// ApplicationName is the application_name of the sidecar's own sessions.
const ApplicationName = "cnpg-i-scale-to-zero"

// Session is a row of pg_stat_activity. NULLs are empty, except where that would lose something.
type Session struct {
	// BackendType, User, Application, Database and State are the columns of that name.
	BackendType, User, Application, Database, State string
	// Local says that client_addr is NULL: the session came over the Unix socket.
	Local bool
}

// Cluster is what has to be known of the cluster to recognise its own sessions.
type Cluster struct {
	// Instances are the names of the cluster's pods.
	Instances []string
}

// Class is whose a session is.
type Class string

// The classes.
const (
	// ClassClient is a session that keeps the cluster awake.
	ClassClient Class = "client"
	// ClassInfrastructure is a session of the operator, its exporter and pooler, the standbys, or the sidecar.
	ClassInfrastructure Class = "infrastructure"
	// ClassInternal is a process of PostgreSQL itself.
	ClassInternal Class = "internal"
)

// joinSuffix is what CloudNativePG appends to an instance's name while it joins (1.30: pkg/management/postgres/probes.go).
const joinSuffix = "-join"

// Classify tells whose a session is. Infrastructure is matched by user and application_name together, and local sessions
// must be local: any user may choose an application_name.
func Classify(s Session, cluster Cluster) Class {
	switch s.BackendType {
	case "client backend", "walsender":
		if s.State == "starting" && s.User == "" {
			return ClassInternal // PostgreSQL 18 shows who has not logged in yet; before, he was not there
		}
		if infrastructure(s, cluster) {
			return ClassInfrastructure
		}
		return ClassClient
	default:
		// PostgreSQL's own processes and the idle launchers of extensions have no state. A worker that works in
		// somebody's name has a user and a state, and counts.
		if s.User == "" || s.State == "" || internal(s.BackendType) {
			return ClassInternal
		}
		return ClassClient
	}
}

// internal lists the backend types that may carry a user and a state and still are not somebody's work. A parallel worker
// is left out since its leader is a session of its own.
func internal(backendType string) bool {
	switch backendType {
	case "autovacuum worker", "autovacuum launcher", "logical replication launcher", "slotsync worker", "parallel worker":
		return true
	default:
		return false
	}
}

// infrastructure follows what CloudNativePG 1.28 to 1.30 connects as: the instance manager (pkg/management/postgres/
// instance.go), the metrics exporter, the standbys and their slot replicator (conninfo.go, slots/runner), and PgBouncer's
// auth_query (internal/pgbouncer/config). A backup tool's session is not among them: a running backup must not be cut.
func infrastructure(s Session, cluster Cluster) bool {
	switch s.User {
	case "postgres":
		return s.Local && (s.Application == "cnpg-instance-manager" || s.Application == ApplicationName)
	case "cnpg_metrics_exporter":
		return s.Local && (s.Application == "cnpg_metrics_exporter" || s.Application == ApplicationName)
	case "streaming_replica":
		return slices.Contains(cluster.Instances, strings.TrimSuffix(s.Application, joinSuffix))
	case "cnpg_pooler_pgbouncer":
		return s.Database == "postgres"
	default:
		return false
	}
}
