package sleep

import (
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// View is what the Machine needs to know about its Cluster.
type View struct {
	// Primary says that this instance is both the current and the target primary, Healthy that the Cluster's phase is
	// healthy.
	Primary, Healthy bool
	// PrimarySince is when the current primary became that.
	PrimarySince time.Time
	// NotReady says that the operator's hibernation is not over, or that it has not found this instance ready since.
	NotReady bool
	// Manual says that only people wake the cluster, so that no plugin is needed.
	Manual bool
	// HibernationOn says that hibernation is on, OwnsHibernation that our field manager alone owns its annotation, and
	// HibernationBegun that the operator has begun to delete pods.
	HibernationOn, OwnsHibernation, HibernationBegun bool
	// Announced is the announcement of sleep, or empty; Acknowledged is the one that the gateway has acknowledged, and
	// Holding the one for which it holds every client.
	Announced, Acknowledged, Holding string
	// Fenced says that our field manager alone has fenced the instance, and Stopped that PostgreSQL has been recorded
	// as stopped in this pod.
	Fenced, Stopped bool
	// DozeEnding says that the fence of a doze is gone, but not yet every other annotation of it, or that PostgreSQL
	// has not been started since.
	DozeEnding bool
	// ForeignMarks says that another writer has written annotations of a doze: they say nothing of PostgreSQL, and are
	// removed.
	ForeignMarks bool
	// MayDoze says that the cluster may still doze.
	MayDoze bool
}

// permits reports whether the Cluster allows an attempt to continue.
func (v View) permits(doze bool) bool {
	return v.Primary && v.Healthy && !v.HibernationOn && (v.MayDoze || !doze)
}

// dozes reports whether the cluster dozes, or is about to.
func (v View) dozes() bool { return v.Fenced && !v.HibernationOn }

// acknowledges reports whether the gateway is ready for the announcement, or not needed.
func (v View) acknowledges(announcement string) bool {
	return v.Manual || v.Acknowledged == announcement
}

// held reports whether the gateway holds every client for the announcement, so that a fence may have been requested.
func (v View) held() bool { return v.Announced != "" && v.Holding == v.Announced }

// Event is something that happened: a [Viewed], [Observed], [Completed] or [Timeout].
type Event interface{ event() }

// Viewed is a state of the Cluster from the watch. States arrive in the order in which they were written, and none is
// older than the View of a previous Completed.
type Viewed struct{ View View }

// Observed is the result of an observation of the instance, or of a use between two observations.
type Observed struct {
	// Blocker is what keeps the cluster awake, or empty.
	Blocker idle.Reason
	// InUse says that the instance is in use now, or has been since the last observation.
	InUse bool
	// Doze says that the cluster is to doze rather than to hibernate.
	Doze bool
	// IdleRestarted says that the idle time has started again since the last attempt. The next attempt then needs no
	// backoff.
	IdleRestarted bool
}

// Completed is the result of an action.
type Completed struct {
	Action  Action
	Outcome Outcome
	// View is the newest known state of the Cluster, at least as new as the API server's answer: for ReadCluster and
	// every patch of the Cluster, if Done.
	View View
	// Announcement is what was written, for Announce, if Done.
	Announcement string
	// Blocker is what keeps the cluster awake, for ListBackups, Prepare, AskSiblings and Sample.
	Blocker idle.Reason
	// InUse says that an instance is in use, for AskSiblings and Sample.
	InUse bool
	// Ignored says that the instance manager does not stop PostgreSQL, for AskManager.
	Ignored bool
}

// Timeout means that a timer has expired.
type Timeout struct{ Timer Timer }

func (Viewed) event()    {}
func (Observed) event()  {}
func (Completed) event() {}
func (Timeout) event()   {}

// Outcome is how an action ended.
type Outcome uint8

// The outcomes.
const (
	// Done means that the action took effect, Refused that it was answered and did not.
	Done Outcome = iota
	Refused
	// Conflict means that the action did not take effect, because the object has changed meanwhile.
	Conflict
	// Lost means that no answer came: the action may have taken effect, or may still do so.
	Lost
)

// String returns the outcome for logs.
func (o Outcome) String() string {
	return [...]string{"done", "refused", "conflict", "lost"}[o]
}
