package activity

// Database is the session statistics of one database.
type Database struct {
	// Sessions is how many sessions it has had, and Reset when that counter was last reset, in microseconds since 1970.
	Sessions, Reset int64
}

// Ledger is the session statistics of all databases, by name.
type Ledger map[string]Database

// maintenanceDatabase is where the operator's probes and the standbys' slot replicators log in.
const maintenanceDatabase = "postgres"

// Rose reports whether a database has had sessions between two samples that the infrastructure's sessions in the maintenance
// database do not explain: if it has more new sessions than that one, some are somebody else's. A reset counter, and a database
// that was created or dropped, count as unexplained too.
func (l Ledger) Rose(after Ledger) bool {
	rises, ok := l.rise(after)
	if !ok {
		return true
	}
	explained := after[maintenanceDatabase].Sessions - l[maintenanceDatabase].Sessions
	for _, rise := range rises {
		if rise > explained {
			return true
		}
	}
	return false
}

// Same reports whether, between two samples, no database except the maintenance one has had a session, and none was created,
// dropped or reset. This proves that nobody connected while nobody sampled.
func (l Ledger) Same(after Ledger) bool {
	rises, ok := l.rise(after)
	return ok && len(l) != 0 && len(rises) == 0
}

// rise returns by how much the databases' counters have increased, without the maintenance database and unchanged ones. ok is
// false if a database was created or dropped or a counter was reset.
func (l Ledger) rise(after Ledger) (rises map[string]int64, ok bool) {
	rises = map[string]int64{}
	for name, now := range after {
		before, ok := l[name]
		if !ok || now.Reset != before.Reset || now.Sessions < before.Sessions {
			return nil, false
		}
		if difference := now.Sessions - before.Sessions; difference != 0 && name != maintenanceDatabase {
			rises[name] = difference
		}
	}
	return rises, len(l) == len(after)
}
