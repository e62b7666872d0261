package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
)

// Examine takes one sample over its own session and also returns every session, for display.
func (s *Server) Examine(ctx context.Context, rules activity.Rules) (Sample, []activity.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, s.answerWithin)
	defer cancel()
	opened, err := s.connect(ctx, maintenanceDatabase)
	if err != nil {
		return Sample{}, nil, err
	}
	defer opened.closeNow()
	return examine(ctx, opened.conn, rules)
}

// ExamineDSN does the same for any server, given a connection string or URL.
func ExamineDSN(ctx context.Context, dsn string, rules activity.Rules) (Sample, []activity.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return Sample{}, nil, fmt.Errorf("read the connection string: %w", err) // pgx leaves the password out
	}
	for name, value := range parameters(statementTimeout) {
		config.RuntimeParams[name] = value
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return Sample{}, nil, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	return examine(ctx, conn, rules)
}

func examine(ctx context.Context, conn *pgx.Conn, rules activity.Rules) (Sample, []activity.Session, error) {
	var sessions []activity.Session
	sample, err := read(ctx, conn, rules, func(s activity.Session) { sessions = append(sessions, s) })
	return sample, sessions, err
}
