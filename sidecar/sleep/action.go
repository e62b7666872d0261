package sleep

import (
	"strings"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// Action is something to carry out. Actions are bits, so that those that are under way make a set.
type Action uint16

// The actions. Each is answered by one [Completed], except those that say otherwise. The patches of the Cluster demand the
// resourceVersion of its newest known state.
const (
	// ListBackups asks the API server whether a Backup of the cluster has not ended.
	ListBackups Action = 1 << iota
	// Announce writes the announcement.
	Announce
	// Suspend suspends the ScheduledBackups, and marks them.
	Suspend
	// AskSiblings has every other instance sampled now, and asks what it saw.
	AskSiblings
	// ReadCluster reads the Cluster from the API server.
	ReadCluster
	// Sample samples this instance and takes what the siblings said into account. It also opens the session that EndSessions
	// needs, since a server that shuts down accepts none.
	Sample
	// Hibernate turns the switch on and removes the announcement.
	Hibernate
	// RemoveAnnouncement removes it.
	RemoveAnnouncement
	// Withdraw turns the switch off.
	Withdraw
	// Resume resumes the ScheduledBackups that carry our mark.
	Resume
	// EndSessions ends the sessions of this instance that do not count: a shutdown would wait for them. It is not answered.
	EndSessions
	// LeaveMarker shows PostgreSQL's preStop hook that the pod is deleted to sleep; RemoveMarker takes it back. Neither is
	// answered.
	LeaveMarker
	RemoveMarker
	// Observe asks for an observation soon. It is not answered by a Completed.
	Observe
)

// actionNames are in the order of the constants.
var actionNames = [...]string{
	"ListBackups", "Announce", "Suspend", "AskSiblings", "ReadCluster", "Sample", "Hibernate", "RemoveAnnouncement",
	"Withdraw", "Resume", "EndSessions", "LeaveMarker", "RemoveMarker", "Observe",
}

// String names the action, or the actions of a set.
func (a Action) String() string {
	var names []string
	for i, name := range actionNames {
		if a&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}

// answered are the actions that a Completed answers.
const answered = ListBackups | Announce | Suspend | AskSiblings | ReadCluster | Sample | Hibernate | RemoveAnnouncement |
	Withdraw | Resume

// Result is how an attempt to sleep ended.
type Result string

// The results.
const (
	// ResultSuccess says that the switch is on.
	ResultSuccess Result = "success"
	// ResultAborted says that something spoke against sleep at the last moment.
	ResultAborted Result = "aborted"
	// ResultConflict says that the Cluster changed meanwhile.
	ResultConflict Result = "conflict"
	// ResultWithdrawn says that the switch was turned off again, before the operator did anything.
	ResultWithdrawn Result = "withdrawn"
	// ResultError says that the API server or the database failed us.
	ResultError Result = "error"
)

// Results is the closed list of results.
func Results() []Result {
	return []Result{ResultSuccess, ResultAborted, ResultConflict, ResultWithdrawn, ResultError}
}

// Report says how an attempt ended, for logs, metrics and Events.
type Report struct {
	Result Result
	// Reason is what spoke against sleep, of ResultAborted; of ResultWithdrawn it is ReasonActive if somebody uses the
	// database, else the operator has not begun in time.
	Reason idle.Reason
	// Action is what failed, of ResultError and ResultConflict.
	Action Action
}

// Output is what a step asks for.
type Output struct {
	// Actions are to be carried out in this order; those that are answered may run side by side.
	Actions []Action
	// Reports are the attempts that have ended.
	Reports []Report
}
