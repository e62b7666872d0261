package activity

// Database is what the statistics say of a database.
type Database struct {
	// Sessions is how many it has had, and Reset when the counter was set to zero, in microseconds since 1970.
	Sessions, Reset int64
}

// Ledger is what the statistics say of the databases, by name.
type Ledger map[string]Database

// maintenanceDatabase is where the operator's probes and the standbys' slot replicators log in.
const maintenanceDatabase = "postgres"

// Rose reports whether a database has had sessions between two samples that the infrastructure's in the maintenance database
// do not explain: what another database has had more than that one is taken for somebody else's. A counter that was reset, and
// a database that has come or gone, are not explained either.
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

// Same reports whether no database but the maintenance one has had a session between two samples, and none has come, gone or
// been reset: the proof that nobody was there while nobody sampled.
func (l Ledger) Same(after Ledger) bool {
	rises, ok := l.rise(after)
	return ok && len(l) != 0 && len(rises) == 0
}

// rise is by how much the counters of the databases have risen, without the maintenance database and those that have not. It
// is not ok if a database has come or gone or a counter was reset.
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
