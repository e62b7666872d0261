package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sql"
)

// Sample is what one look at the instance showed.
type Sample struct {
	// Began and Ended enclose the look.
	Began, Ended time.Time
	// Tally counts the client sessions.
	Tally activity.Tally
}

// Sampler looks at the sessions of an instance over a session of its own that it keeps.
type Sampler struct {
	server Server
	held   holder
}

// NewSampler makes a sampler; it connects with the first sample.
func NewSampler(server Server) *Sampler { return &Sampler{server: server} }

// Sample looks once, at most for three seconds. After an error the session is gone and the next sample connects anew. Only
// one goroutine may sample at a time.
func (s *Sampler) Sample(ctx context.Context, cluster activity.Cluster) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
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
	sample, err := read(ctx, session.conn, cluster)
	if err != nil {
		s.held.close()
		return Sample{}, err
	}
	return sample, nil
}

func read(ctx context.Context, conn *pgx.Conn, cluster activity.Cluster) (Sample, error) {
	sample := Sample{Began: time.Now()}
	rows, err := conn.Query(ctx, sql.Activity)
	if err != nil {
		return Sample{}, fmt.Errorf("sample the sessions: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var session activity.Session
		err := rows.Scan(&session.BackendType, &session.User, &session.Application, &session.Database, &session.State, &session.Local)
		if err != nil {
			return Sample{}, fmt.Errorf("read a session: %w", err)
		}
		sample.Tally.Add(session, cluster)
	}
	if err := rows.Err(); err != nil {
		return Sample{}, fmt.Errorf("read the sessions: %w", err)
	}
	sample.Ended = time.Now()
	return sample, nil
}

// Connected tells whether a session is held.
func (s *Sampler) Connected() bool { return s.held.current() != nil }

// Close ends the session at once, a running sample included. It may be called from any goroutine.
func (s *Sampler) Close() { s.held.close() }
