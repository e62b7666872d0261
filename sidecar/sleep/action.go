package sleep

import (
	"strings"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// Action is something to carry out. Actions are bits, so that a set of them fits into one value.
type Action uint16

// The actions. Each is answered by one [Completed], unless stated otherwise. The patches of the Cluster require the
// resourceVersion of its newest known state.
const (
	// ListBackups asks the API server whether a Backup of the cluster has not ended yet.
	ListBackups Action = 1 << iota
	// Announce writes the announcement.
	Announce
	// Suspend suspends the ScheduledBackups, and marks them.
	Suspend
	// AskSiblings triggers a sample of every other instance and asks for its result.
	AskSiblings
	// ReadCluster reads the Cluster from the API server.
	ReadCluster
	// Sample samples this instance and takes the siblings' answers into account. It also opens the session that EndSessions
	// needs, since a server that shuts down accepts none.
	Sample
	// Hibernate turns the switch on and removes the announcement.
	Hibernate
	// RemoveAnnouncement removes the announcement.
	RemoveAnnouncement
	// Withdraw turns the switch off.
	Withdraw
	// Resume resumes the ScheduledBackups that carry our mark.
	Resume
	// EndSessions terminates the sessions of this instance that do not count, because a shutdown would wait for them. It is not
	// answered.
	EndSessions
	// LeaveMarker tells PostgreSQL's preStop hook that the pod is deleted for sleep; RemoveMarker undoes that. Neither is
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

// String returns the name of the action, or the names of a set.
func (a Action) String() string {
	var names []string
	for i, name := range actionNames {
		if a&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}

// answered are the actions that are answered by a Completed.
const answered = ListBackups | Announce | Suspend | AskSiblings | ReadCluster | Sample | Hibernate | RemoveAnnouncement |
	Withdraw | Resume

// Result is how an attempt to sleep ended.
type Result string

// The results.
const (
	// ResultSuccess means that the switch is on.
	ResultSuccess Result = "success"
	// ResultAborted means that something spoke against sleep at the last moment.
	ResultAborted Result = "aborted"
	// ResultConflict means that the Cluster changed meanwhile.
	ResultConflict Result = "conflict"
	// ResultWithdrawn means that the switch was turned off again before the operator did anything.
	ResultWithdrawn Result = "withdrawn"
	// ResultError means that the API server or the database failed.
	ResultError Result = "error"
)

// Results returns all results.
func Results() []Result {
	return []Result{ResultSuccess, ResultAborted, ResultConflict, ResultWithdrawn, ResultError}
}

// Report says how an attempt ended, for logs, metrics and Events.
type Report struct {
	Result Result
	// Reason is what spoke against sleep, for ResultAborted. For ResultWithdrawn it is ReasonActive if somebody uses the
	// database; otherwise the operator has not begun in time.
	Reason idle.Reason
	// Action is what failed, for ResultError and ResultConflict.
	Action Action
}

// Output is the result of a step.
type Output struct {
	// Actions must be started in this order; those that are answered may run concurrently.
	Actions []Action
	// Reports are the attempts that have ended.
	Reports []Report
}
