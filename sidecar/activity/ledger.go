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

// Same reports whether, between two samples, no database except the maintenance one has had a session, and none was
// created, dropped or reset. This proves that nobody connected to another database meanwhile; what connects to the
// maintenance database looks the same as the infrastructure.
func (l Ledger) Same(after Ledger) bool {
	for name, now := range after {
		before, ok := l[name]
		rose := now.Sessions > before.Sessions && name != maintenanceDatabase
		if !ok || rose || now.Sessions < before.Sessions || now.Reset != before.Reset {
			return false
		}
	}
	return len(l) != 0 && len(l) == len(after)
}
