// Package activity judges the sessions of a PostgreSQL instance: the rows of pg_stat_activity, and the TCP sessions
// that the kernel reports as ended. It is pure.
//
// The predicate is inverted: it lists what is provably PostgreSQL itself or the infrastructure around it, and counts
// everything else, whatever its state. An unknown state counts.
package activity

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// Session is a row of pg_stat_activity. NULLs are empty, except where information would be lost.
type Session struct {
	// BackendType, User, Application, Database and State are the columns of that name.
	BackendType, User, Application, Database, State string
	// Local says that the session uses the Unix socket.
	Local bool
	// Peer is the client's address and port; invalid if it has none, or if it is not visible.
	Peer netip.AddrPort
	// PID, and Started in microseconds since 1970, identify the session.
	PID, Started int64
	// IdleFor is how long the session has been in its state, and Changed since when, in microseconds since 1970.
	IdleFor time.Duration
	Changed int64
	// InTransaction says that a transaction is open.
	InTransaction bool
	// Wraparound says that this is an autovacuum to prevent wraparound.
	Wraparound bool
}

// Rules say which sessions do not count.
type Rules struct {
	// Instances are the names of the cluster's pods, and Addresses the addresses of the other ones: together they show
	// the sessions of its standbys.
	Instances []string
	Addresses []netip.Addr
	// Ignore describes sessions that never count.
	Ignore []idle.Pattern
	// Queries says that an idle session counts only until the end of its last statement.
	Queries bool
	// ClientAddr returns the client of a connection that the wake gateway made; if nil, every connection is its peer's
	// own.
	ClientAddr func(netip.AddrPort) netip.AddrPort
	// Probe reports whether a connection is a probe by this sidecar or the wake gateway; if nil, none is.
	Probe func(netip.AddrPort) bool
}

// client returns the address of the session's client; invalid if it has none.
func (r Rules) client(s Session) netip.Addr {
	if r.ClientAddr == nil || !s.Peer.IsValid() {
		return s.Peer.Addr()
	}
	return r.ClientAddr(s.Peer).Addr()
}

// probe reports whether the session is a probe: where pg_hba.conf asks for no password, a startup packet opens a
// session.
func (r Rules) probe(s Session) bool { return r.Probe != nil && s.Peer.IsValid() && r.Probe(s.Peer) }

// Class says to whom a session belongs.
type Class string

// The classes.
const (
	// ClassClient is a session that keeps the cluster awake.
	ClassClient Class = "client"
	// ClassIgnored is a client that an annotation excludes.
	ClassIgnored Class = "ignored"
	// ClassReplication is a replication client that is not a standby of the cluster.
	ClassReplication Class = "replication_client"
	// ClassWorker is a working background worker of an extension.
	ClassWorker Class = "background_worker"
	// ClassWraparound is an autovacuum to prevent wraparound.
	ClassWraparound Class = "wraparound_vacuum"
	// ClassInfrastructure is a session of the operator, its exporter and pooler, the standbys, or the sidecar.
	ClassInfrastructure Class = "infrastructure"
	// ClassInternal is a process of PostgreSQL itself, or an idle background worker.
	ClassInternal Class = "internal"
)

// The roles of PgBouncer's auth_query and of the standbys.
const PoolerUser, StandbyUser = "cnpg_pooler_pgbouncer", "streaming_replica"

// JoinSuffix is what CloudNativePG appends to an instance's name while it joins (1.30:
// pkg/management/postgres/probes.go).
const JoinSuffix = "-join"

// Classify returns a session's class. The user and the application_name together identify infrastructure, because any
// user may choose an application_name. Where the infrastructure connects over the Unix socket, the session must do so
// too.
func Classify(s Session, rules Rules) Class {
	switch s.BackendType {
	case "client backend", "walsender":
		switch {
		case s.State == "starting" && s.User == "":
			return ClassInternal // PostgreSQL 18 shows sessions that have not logged in yet; earlier versions do not
		case infrastructure(s, rules), rules.probe(s):
			return ClassInfrastructure
		case ignored(s, rules):
			return ClassIgnored
		case s.BackendType == "walsender":
			return ClassReplication
		default:
			return ClassClient
		}
	case "autovacuum worker":
		if s.Wraparound {
			return ClassWraparound
		}
		return ClassInternal
	// A parallel worker's leader has a row of its own; workers of a subscription have a separate reason.
	case "autovacuum launcher", "parallel worker", "logical replication launcher", "logical replication worker",
		"logical replication apply worker", "logical replication parallel worker", "logical replication tablesync worker",
		"slotsync worker", "startup", "checkpointer", "background writer", "walwriter", "archiver", "walreceiver",
		"walsummarizer", "logger", "stats collector", "io worker", "standalone backend":
		return ClassInternal
	// pg_prewarm refills the cache after a start, in transactions, which is no use of the database.
	case "autoprewarm leader", "autoprewarm worker":
		return ClassInternal
	default:
		// A background worker of an extension: between two jobs its launcher is idle, or has no state.
		if s.InTransaction || s.State != "" && s.State != "idle" {
			return ClassWorker
		}
		return ClassInternal
	}
}

// ignored reports whether an annotation excludes the session.
func ignored(s Session, rules Rules) bool {
	client := rules.client(s)
	return slices.ContainsFunc(rules.Ignore, func(p idle.Pattern) bool {
		return p.Matches(s.User, s.Application, s.Database, client)
	})
}

// LocalInfrastructure are the applications that use the Unix socket, by user. The probes run pg_isready, which logs in
// where peer authentication allows it: a session of a millisecond every ten seconds. Operators without a role for the
// exporter (1.28 before 1.28.3) scrape in a session of the instance manager that temporarily has the exporter's name
// (metrics/collector.go). sql/login-trigger.sql has the same list.
var LocalInfrastructure = map[string][]string{
	"postgres":              {"cnpg-instance-manager", "cnpg_metrics_exporter", "pg_isready", contract.ApplicationName},
	"cnpg_metrics_exporter": {"cnpg_metrics_exporter", contract.ApplicationName},
}

// infrastructure recognises the sessions of CloudNativePG 1.28 to 1.30: the instance manager
// (pkg/management/postgres/instance.go), the metrics exporter, the standbys and their slot replicator (conninfo.go,
// slots/runner), and PgBouncer's auth_query (internal/pgbouncer/config). It does not include backup tools, because a
// running backup must not be cut.
func infrastructure(s Session, rules Rules) bool {
	application := s.Application
	if application == contract.ListeningApplicationName {
		application = contract.ApplicationName // as when it logged in
	}
	switch {
	case s.Local && slices.Contains(LocalInfrastructure[s.User], application):
		return true
	case s.User == StandbyUser:
		// A replica cluster connects with its own name, which may be that of a pod here, so the address is compared too. An
		// instance that joins connects from the pod of a Job, whose address is in no status, but with a suffix that no
		// walreceiver uses. Only this pod can connect over the socket.
		name, joins := strings.CutSuffix(application, JoinSuffix)
		return slices.Contains(rules.Instances, name) &&
			(joins || s.Local || slices.Contains(rules.Addresses, rules.client(s)))
	default:
		return s.User == PoolerUser && s.Database == "postgres"
	}
}
