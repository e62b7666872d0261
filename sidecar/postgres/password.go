package postgres

import (
	"context"
	"fmt"
)

// PasswordSet reports whether the role's password has been set since the server's last checkpoint, which after a start
// is that of the shutdown before. Only a superuser may read that.
func (s *Server) PasswordSet(ctx context.Context, role string) (set bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.answerWithin)
	defer cancel()
	opened, err := s.connectAs(ctx, roleFallback, maintenanceDatabase, statementTimeout)
	if err != nil {
		return false, err
	}
	defer opened.closeNow()
	if err := opened.conn.QueryRow(ctx, passwordSetStatement, role).Scan(&set); err != nil {
		return false, fmt.Errorf("ask whether a password has been set: %w", err)
	}
	return set, nil
}
