package sleep

import (
	"strings"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// Action is something to carry out. Actions are bits, so that a set of them fits into one value.
type Action uint32

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
	// Sample samples this instance and takes the siblings' answers into account. It also opens the session that
	// EndSessions needs, because a server that shuts down accepts none.
	Sample
	// Hibernate turns hibernation on and removes the announcement.
	Hibernate
	// Fence fences the instance, so that the instance manager stops PostgreSQL, and removes the announcement and any
	// record of an earlier stop.
	Fence
	// RemoveAnnouncement removes the announcement, and the annotations of a doze that is over.
	RemoveAnnouncement
	// Withdraw turns hibernation off.
	Withdraw
	// Resume resumes the ScheduledBackups that carry our mark.
	Resume
	// Prepare runs a checkpoint and waits until PostgreSQL has archived its WAL, so that the stop will be short.
	Prepare
	// WithdrawReadiness makes the pod not ready, so that it leaves its Services, until RestoreReadiness, or until this
	// process has been gone for some seconds. It is answered after the first try; the driver repeats a try that failed.
	WithdrawReadiness
	// AwaitStop waits until PostgreSQL has stopped, and AwaitServing until one accepts sessions that no fence will stop
	// any more. Both wait without limit, and are Refused after CancelWait.
	AwaitStop
	AwaitServing
	// RecordStop records on the Cluster that PostgreSQL has stopped.
	RecordStop
	// AskManager asks the instance manager whether it stops PostgreSQL.
	AskManager
	// LiftFence removes the fence. The other annotations of the doze stay until PostgreSQL serves: they tell the
	// gateway that PostgreSQL may still stop.
	LiftFence
	// EndSessions terminates the sessions of this instance that do not count, because a shutdown would wait for them.
	// It is not answered.
	EndSessions
	// LeaveMarker tells PostgreSQL's preStop hook that the pod is deleted for sleep; RemoveMarker undoes that. Neither
	// is answered.
	LeaveMarker
	RemoveMarker
	// RestoreReadiness makes the pod ready again. It is not answered.
	RestoreReadiness
	// CancelWait ends AwaitStop and AwaitServing. It is not answered.
	CancelWait
	// Observe asks for an observation soon. It is not answered by a Completed.
	Observe
)

// actionNames are in the order of the constants.
var actionNames = [...]string{
	"ListBackups", "Announce", "Suspend", "AskSiblings", "ReadCluster", "Sample", "Hibernate", "Fence", "RemoveAnnouncement",
	"Withdraw", "Resume", "Prepare", "WithdrawReadiness", "AwaitStop", "AwaitServing", "RecordStop", "AskManager", "LiftFence",
	"EndSessions", "LeaveMarker", "RemoveMarker", "RestoreReadiness", "CancelWait", "Observe",
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
const answered = ListBackups | Announce | Suspend | AskSiblings | ReadCluster | Sample | Hibernate | Fence | RemoveAnnouncement |
	Withdraw | Resume | Prepare | WithdrawReadiness | AwaitStop | AwaitServing | RecordStop | AskManager | LiftFence

// Result is how an attempt to sleep ended.
type Result string

// The results.
const (
	// ResultSuccess means that hibernation is on, or for a doze that the instance is fenced.
	ResultSuccess Result = "success"
	// ResultAborted means that a blocker was found during the attempt.
	ResultAborted Result = "aborted"
	// ResultConflict means that the Cluster changed meanwhile.
	ResultConflict Result = "conflict"
	// ResultWithdrawn means that hibernation was turned off again before the operator did anything, or for a doze that
	// the fence is lifted again.
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
	// Reason is the blocker, for ResultAborted. For ResultWithdrawn it is ReasonActive if a client uses the database;
	// otherwise the operator has not begun in time, or for a doze the instance manager does not stop PostgreSQL.
	Reason idle.Reason
	// Action is what failed, for ResultError and ResultConflict.
	Action Action
	// Doze says that the attempt was to doze.
	Doze bool
}

// Output is the result of a step.
type Output struct {
	// Actions must be started in this order; those that are answered may run concurrently.
	Actions []Action
	// Reports are the attempts that have ended.
	Reports []Report
}
