package activity

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// stateUndefined stands for a state that PostgreSQL does not report, or that this program does not know.
const stateUndefined = "unknown"

// stateNames are the states of client sessions as metrics and reports name them, by those of PostgreSQL.
var stateNames = map[string]string{
	"active": "active", "idle": "idle", "idle in transaction": "idle_in_transaction",
	"idle in transaction (aborted)": "idle_in_transaction_aborted", "fastpath function call": "fastpath_function_call",
	"disabled": "disabled",
}

// Terminable is a session that does not count but would delay a shutdown. It is terminated when the cluster is put to
// sleep.
type Terminable struct {
	// PID and Started, in microseconds since 1970, identify the session.
	PID, Started int64
	// User and Client are whose it is; a session over the Unix socket has no valid address.
	User   string
	Client netip.Addr
	// Idle says that the session does not count because it has been idle since Changed, in microseconds since 1970.
	Idle    bool
	Changed int64
	// Infrastructure says that the session is PgBouncer's or a standby's, whose statements do not count as use either.
	Infrastructure bool
}

// maximumKept limits what is kept of one sample. A server with more sessions has some that count.
const maximumKept = 10_000

// Tally summarises the sessions of one sample. The zero value is ready to use.
type Tally struct {
	states     map[string]int
	classes    map[Class]int
	local      bool
	lastUse    time.Duration
	used       bool
	peers      map[netip.AddrPort]Class
	terminable []Terminable
}

// Add adds one session.
func (t *Tally) Add(s Session, rules Rules) {
	class := Classify(s, rules)
	if t.classes == nil {
		t.states, t.classes, t.peers = map[string]int{}, map[Class]int{}, map[netip.AddrPort]Class{}
	}
	t.keep(s, class)
	resting := rules.Queries && class == ClassClient && s.State == "idle"
	switch {
	case class == ClassIgnored:
		t.addTerminable(Terminable{PID: s.PID, Started: s.Started, User: s.User, Client: rules.client(s)})
	case resting:
		t.count(s)
		t.addTerminable(Terminable{PID: s.PID, Started: s.Started, User: s.User, Client: rules.client(s), Idle: true, Changed: s.Changed})
		if idleFor := max(s.IdleFor, 0); !t.used || idleFor < t.lastUse {
			t.used, t.lastUse = true, idleFor
		}
		return
	case class == ClassClient:
		t.count(s)
	// PgBouncer keeps it for its next auth_query.
	case class == ClassInfrastructure && s.User == PoolerUser && s.State == "idle":
		t.addTerminable(Terminable{PID: s.PID, Started: s.Started, Idle: true, Changed: s.Changed, Infrastructure: true})
	// A standby's slotsync worker keeps it, and connects again.
	case class == ClassInfrastructure && s.User == StandbyUser && s.BackendType == "client backend":
		t.addTerminable(Terminable{PID: s.PID, Started: s.Started, Infrastructure: true})
	}
	t.classes[class]++
	if class != ClassInfrastructure && class != ClassInternal && class != ClassIgnored && !s.Peer.IsValid() {
		t.local = true
	}
}

func (t *Tally) count(s Session) { t.states[cmp.Or(stateNames[s.State], stateUndefined)]++ }

func (t *Tally) keep(s Session, class Class) {
	if s.Peer.IsValid() && class != ClassInternal && len(t.peers) < maximumKept {
		t.peers[s.Peer] = class
	}
}

func (t *Tally) addTerminable(d Terminable) {
	if len(t.terminable) < maximumKept {
		t.terminable = append(t.terminable, d)
	}
}

// InUse returns why the instance is in use; empty if it is not.
func (t Tally) InUse() []idle.Reason {
	var reasons []idle.Reason
	for _, class := range []struct {
		class  Class
		reason idle.Reason
	}{
		{ClassClient, idle.ReasonActive},
		{ClassReplication, idle.ReasonReplicationClient},
		{ClassWorker, idle.ReasonBackgroundWorker},
		{ClassWraparound, idle.ReasonWraparoundVacuum},
	} {
		if t.classes[class.class] != 0 {
			reasons = append(reasons, class.reason)
		}
	}
	return reasons
}

// HasClients reports whether any session counts, apart from PostgreSQL's own vacuum to prevent wraparound.
func (t Tally) HasClients() bool {
	return slices.ContainsFunc(t.InUse(), func(r idle.Reason) bool { return r != idle.ReasonWraparoundVacuum })
}

// Local reports whether something counts whose end the kernel does not report, because it has no address.
func (t Tally) Local() bool { return t.local }

// LastUse returns how long ago the last statement ended of the idle sessions that count only until then; false if there
// are no such sessions.
func (t Tally) LastUse() (time.Duration, bool) { return t.lastUse, t.used }

// Peers returns the clients that had an address, with their classes.
func (t Tally) Peers() map[netip.AddrPort]Class { return t.peers }

// Terminable returns the sessions that do not count but would delay a shutdown.
func (t Tally) Terminable() []Terminable { return t.terminable }

// ByState returns the number of client sessions of every state, zeros included.
func (t Tally) ByState() map[string]int {
	byState := map[string]int{stateUndefined: t.states[stateUndefined]}
	for _, name := range stateNames {
		byState[name] = t.states[name]
	}
	return byState
}
