package activity

// The states of client sessions, as metrics and reports name them.
const (
	stateActive    = "active"
	stateIdle      = "idle"
	stateInTx      = "idle_in_transaction"
	stateAborted   = "idle_in_transaction_aborted"
	stateFastpath  = "fastpath_function_call"
	stateDisabled  = "disabled"
	stateUndefined = "unknown"
)

// States is the closed list of states.
func States() []string {
	return []string{stateActive, stateIdle, stateInTx, stateAborted, stateFastpath, stateDisabled, stateUndefined}
}

// stateOf maps the column state; what is not known, NULL included, stays visible as unknown.
func stateOf(column string) string {
	switch column {
	case "active":
		return stateActive
	case "idle":
		return stateIdle
	case "idle in transaction":
		return stateInTx
	case "idle in transaction (aborted)":
		return stateAborted
	case "fastpath function call":
		return stateFastpath
	case "disabled":
		return stateDisabled
	default:
		return stateUndefined
	}
}

// Tally counts the client sessions of one look. It holds a number a state, however many sessions there are. The zero value
// is ready for use.
type Tally struct{ counts [7]int }

// Add takes one session in.
func (t *Tally) Add(s Session, cluster Cluster) {
	if Classify(s, cluster) != ClassClient {
		return
	}
	state := stateOf(s.State)
	for i, known := range States() {
		if known == state {
			t.counts[i]++
		}
	}
}

// Active tells whether anything counts: in this version an open client session does, whatever its state.
func (t Tally) Active() bool { return t.counts != [7]int{} }

// ByState returns the number of client sessions of every state, zeros included.
func (t Tally) ByState() map[string]int {
	byState := make(map[string]int, len(t.counts))
	for i, state := range States() {
		byState[state] = t.counts[i]
	}
	return byState
}
