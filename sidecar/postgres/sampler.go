package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// Sample is the state of the instance at one moment.
type Sample struct {
	// Began and Ended enclose the sample, without the connect.
	Began, Ended time.Time
	// Tally summarizes the sessions.
	Tally activity.Tally
	// Ledger holds every database's session counter.
	Ledger activity.Ledger
	// Started is the start time of the server, in microseconds since 1970.
	Started int64
	// Checkpointed is the time of its newest checkpoint, likewise.
	Checkpointed int64
	// Blockers are the server's other reasons against a shutdown.
	Blockers []idle.Reason
	// Scheduler is set if an extension that schedules jobs is loaded.
	Scheduler bool
	// InactiveSlots is the number of logical slots that have no consumer and retain WAL.
	InactiveSlots int64
}

// Sampler samples the sessions of an instance over a session that it keeps open.
type Sampler struct {
	server *Server
	held   holder
}

// NewSampler makes a sampler, which connects with its first sample.
func NewSampler(server *Server) *Sampler { return &Sampler{server: server} }

// Sample samples the sessions. On any error their activity is unknown and the sampler's session is closed. Calls must
// not overlap.
func (s *Sampler) Sample(ctx context.Context, rules activity.Rules) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, s.server.answerWithin)
	defer cancel()
	ctx, done := s.held.use(ctx)
	defer done()
	session := s.held.current()
	if session == nil {
		var err error
		if session, err = s.server.connect(ctx, maintenanceDatabase); err != nil {
			return Sample{}, err
		}
		if err := s.held.keep(ctx, session); err != nil {
			return Sample{}, fmt.Errorf("keep the session: %w", err)
		}
	}
	sample, err := read(ctx, session.conn, rules, func(activity.Session) {})
	if err != nil {
		s.held.close()
		return Sample{}, err
	}
	return sample, nil
}

// record is a row of a sample.
type record struct {
	kind, name, user, application, database, state, client string
	port, number, moment, idleFor, changed                 int64
	inTransaction, wraparound                              bool
}

// read judges row by row, so that memory does not grow with the number of sessions. It calls each for every session.
func read(ctx context.Context, conn *pgx.Conn, rules activity.Rules, each func(activity.Session)) (Sample, error) {
	sample := Sample{Began: time.Now(), Ledger: activity.Ledger{}}
	rows, err := conn.Query(ctx, activityStatement)
	if err != nil {
		return Sample{}, fmt.Errorf("read pg_stat_activity: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var r record
		if err := rows.Scan(&r.kind, &r.name, &r.user, &r.application, &r.database, &r.state, &r.client,
			&r.port, &r.number, &r.moment, &r.idleFor, &r.changed, &r.inTransaction, &r.wraparound); err != nil {
			return Sample{}, fmt.Errorf("read a row of pg_stat_activity: %w", err)
		}
		if r.kind == "session" {
			session := r.session()
			sample.Tally.Add(session, rules)
			each(session)
		} else if err := sample.add(r); err != nil {
			return Sample{}, err
		}
	}
	if err := rows.Err(); err != nil {
		return Sample{}, fmt.Errorf("read pg_stat_activity: %w", err)
	}
	sample.Ended = time.Now()
	return sample, nil
}

// errUnknownRow means that the SQL statement and this code do not match.
var errUnknownRow = errors.New("a row is of an unknown kind")

func (s *Sample) add(r record) error {
	switch r.kind {
	case "database":
		s.Ledger[r.database] = activity.Database{Sessions: r.number, Reset: r.moment}
	case "server":
		s.Started, s.Checkpointed, s.Scheduler = r.moment, r.changed, schedulesJobs(r.name)
	case "blocker":
		if r.name == "inactive_logical_slot" {
			s.InactiveSlots = r.number
			return nil
		}
		s.Blockers = append(s.Blockers, idle.Reason(r.name))
	default:
		return fmt.Errorf("%w: %q", errUnknownRow, r.kind)
	}
	return nil
}

// schedulesJobs reports whether one of the shared_preload_libraries has background workers that run jobs.
func schedulesJobs(libraries string) bool {
	for library := range strings.SplitSeq(libraries, ",") {
		library = strings.Trim(library, ` "`)
		switch name, _, _ := strings.Cut(path.Base(library), "-"); strings.TrimSuffix(name, ".so") {
		case "pg_cron", "timescaledb", "pg_partman_bgw":
			return true
		}
	}
	return false
}

func (r *record) session() activity.Session {
	s := activity.Session{
		BackendType: r.name, User: r.user, Application: r.application, Database: r.database, State: r.state,
		Local: r.client == "" && r.port == -1, PID: r.number, Started: r.moment,
		IdleFor: time.Duration(r.idleFor) * time.Microsecond, Changed: r.changed,
		InTransaction: r.inTransaction, Wraparound: r.wraparound,
	}
	if address, err := netip.ParseAddr(r.client); err == nil {
		s.Peer = netip.AddrPortFrom(address.WithZone("").Unmap(), uint16(r.port))
	}
	return s
}

// Close closes the session at once, even during a sample. It may be called from any goroutine.
func (s *Sampler) Close() { s.held.close() }
