package sleep

import "github.com/cnpg-i/scale-to-zero/sidecar/idle"

// View is what the Machine needs to know of its Cluster.
type View struct {
	// Primary says that this instance is the current and the target primary, Healthy that the Cluster's phase is healthy.
	Primary, Healthy bool
	// Manual says that only people wake the cluster, so that no gateway is needed.
	Manual bool
	// On says that hibernation is switched on, Ours that our field manager alone owns the switch, and Begun that the operator
	// has begun to delete pods.
	On, Ours, Begun bool
	// Announced is the announcement of sleep, empty without one; Acknowledged the one that the gateway has acknowledged.
	Announced, Acknowledged string
}

// permits reports whether the Cluster permits an attempt to go on.
func (v View) permits() bool { return v.Primary && v.Healthy && !v.On }

// acknowledges reports whether the gateway stands ready for the announcement, or is not needed.
func (v View) acknowledges(announcement string) bool {
	return v.Manual || v.Acknowledged == announcement
}

// Event is something that happened: a [Viewed], [Observed], [Completed] or [Timeout].
type Event interface{ event() }

// Viewed is a state of the Cluster that the watch brought. States come in the order in which they were written, and none
// that is older than what a Completed said.
type Viewed struct{ View View }

// Observed is what an observation of the instance, or a use of it between two of them, comes to.
type Observed struct {
	// Against is what speaks against sleep; empty: nothing.
	Against idle.Reason
	// InUse says that the instance is in use now, or was since the last observation.
	InUse bool
	// Afresh says that the time it has been idle has begun anew since the last attempt, so that nothing is left to wait for.
	Afresh bool
}

// Completed is what came of an action.
type Completed struct {
	Action  Action
	Outcome Outcome
	// View is the newest known state of the Cluster, at least as new as what the API server answered with: of ReadCluster and
	// of every patch of the Cluster, if Done.
	View View
	// Announcement is what was written, of Announce, if Done.
	Announcement string
	// Against is what speaks against sleep, of ListBackups, AskSiblings and Sample.
	Against idle.Reason
	// InUse says that somebody uses an instance, of AskSiblings and Sample.
	InUse bool
}

// Timeout says that a timer has run out.
type Timeout struct{ Timer Timer }

func (Viewed) event()    {}
func (Observed) event()  {}
func (Completed) event() {}
func (Timeout) event()   {}

// Outcome is how an action ended.
type Outcome uint8

// The outcomes.
const (
	// Done says that it took effect, Refused that it was answered and did not.
	Done Outcome = iota
	Refused
	// Conflict says that it did not, since the object has changed meanwhile.
	Conflict
	// Lost says that no answer came: it may have taken effect, and may yet.
	Lost
)

// String names the outcome in logs.
func (o Outcome) String() string {
	return [...]string{"done", "refused", "conflict", "lost"}[o]
}
