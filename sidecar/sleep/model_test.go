package sleep

import (
	"fmt"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// The announcements that the model tells apart: the newest, and any that is older.
const (
	newest = "newest"
	older  = "older"
)

// schedule is the state of the cluster's ScheduledBackups.
type schedule uint8

const (
	active schedule = iota
	// partly says that one of two is suspended, because the patch of the other one failed.
	partly
	suspended
	// suspendedByPerson was suspended by us and carries our mark, and a person has come to own the suspension since.
	suspendedByPerson
)

// stage is how far the operator has hibernated the cluster.
type stage uint8

const (
	untouched stage = iota
	deleting
	gone
)

// progress is how far a request is.
type progress uint8

const (
	unused progress = iota
	sent
	answering // it was carried out, and the answer is on its way
)

// request is an action under way.
type request struct {
	action   Action
	progress progress
	// stale says that the Cluster has changed since the state whose resourceVersion it demands.
	stale  bool
	result Completed
}

// world is the Machine and the models of everything around it. It is a value.
//
// It omits what may change at any time and matters only when it is queried: whether sessions are open, whether a Backup
// runs and whether the cluster is healthy. Every possible answer is explored instead. It also omits a client that the
// gateway holds, which changes only what the gateway does next, and that may happen at any time as well.
//
// The Machine is that of one instance. While another one is the primary, its Machine is a model as well.
type world struct {
	machine Machine
	// primary says that this instance is the primary, and moved that there has been another one since the Machine's newest view.
	primary, moved bool
	// The API server.
	announced, acknowledged string
	on, ours                bool
	operator                stage
	schedule                schedule
	// requests of this process, and patches that nobody waits for any more.
	requests [3]request
	late     Action
	// behind says that the watch has not brought the newest state. One that it brings while there is a newer one is no case of
	// its own: it is as if the newer one had come about afterwards.
	behind bool
	// Whether the newest samples and the newest list of Backups since the acknowledgement spoke for sleep.
	primaryIdle, standbyIdle, noBackup bool
	client                             client
	// changes and scheduleChanges count what was written to the Cluster and the schedules. They are no part of the state.
	changes, scheduleChanges uint8
	// What the promises are about besides: see promises_test.go.
	unhealthy, expired, marked, ended, used bool
	// violation is a promise that was broken; empty: none.
	violation string
}

func (w *world) view(healthy bool) View {
	return View{
		Primary: w.primary, Healthy: healthy, HibernationOn: w.on, OwnsHibernation: w.on && w.ours, HibernationBegun: w.operator != untouched,
		NotReady:  w.operator != untouched, // whatever the health: the schedules must not wait for the standbys
		Announced: w.announced, Acknowledged: w.acknowledged, PrimarySince: w.primarySince(),
	}
}

// primarySince is one of two times.
func (w *world) primarySince() time.Time {
	if w.machine.view.PrimarySince.IsZero() == w.moved {
		return time.Unix(0, 0)
	}
	return time.Time{}
}

// mayBeIdle and mayBeUsed report whether a sample of this instance may find it idle, and in use.
func (w *world) mayBeIdle() bool { return w.client == unasked || w.client == nobody }
func (w *world) mayBeUsed() bool { return w.client != nobody }

// alive reports whether the pods are there.
func (w *world) alive() bool { return w.operator != gone }

// violate remembers the first promise that was broken.
func (w *world) violate(format string, arguments ...any) {
	if w.violation == "" {
		w.violation = fmt.Sprintf(format, arguments...)
	}
}

// give gives the Machine an event and sends what it asks for.
func (w *world) give(e Event) {
	before := w.machine
	machine, out := Step(w.machine, e)
	w.machine = machine
	for _, a := range out.Actions {
		w.asked(a)
		if a&answered != 0 {
			w.send(a)
		}
	}
	w.stepped(before, e, out.Reports)
	w.forget()
}

// forget forgets what makes no difference any more, so that worlds that go on alike are one.
func (w *world) forget() {
	m := &w.machine
	m.attempts, m.tries, m.resumeTries = 0, 0, 0 // they change how long waits are, and nothing else
	m.backoff = min(m.backoff, short)
	w.expired = w.expired && m.phase.Attempting()
	if m.phase == Verifying || m.phase == Retracting { // the Cluster is read before they are left
		m.view = View{Primary: m.view.Primary, PrimarySince: m.view.PrimarySince, HibernationOn: m.view.HibernationOn}
	}
	if (m.phase < Suspending || m.phase > Hibernating) && w.late&Hibernate == 0 {
		w.primaryIdle, w.standbyIdle, w.noBackup = false, false, false
	}
}

// clusterPatches are the requests that demand a resourceVersion of the Cluster, schedulePatches those that demand ones of
// the ScheduledBackups.
const (
	clusterPatches  = Announce | Hibernate | RemoveAnnouncement | Withdraw
	schedulePatches = Suspend | Resume
)

func (w *world) send(a Action) {
	for i := range w.requests {
		if w.requests[i].progress == unused {
			w.requests[i] = request{action: a, progress: sent, stale: w.behind && a&clusterPatches != 0}
			return
		}
	}
	w.violate("more than %d actions at once", len(w.requests))
}

// wrote says that the Cluster has changed.
func (w *world) wrote() {
	w.changes++
	w.behind = w.alive()
	if w.acknowledged != w.announced { // it means nothing any more
		w.acknowledged = ""
	}
	if w.acknowledged == "" {
		w.primaryIdle, w.standbyIdle, w.noBackup = false, false, false
	}
	for i := range w.requests {
		if r := &w.requests[i]; r.progress == sent && r.action&clusterPatches != 0 {
			r.stale = true
		}
	}
	w.late &^= clusterPatches // they can only fail
}

// wroteSchedule says that the schedules have changed. What is under way reads them first.
func (w *world) wroteSchedule() {
	w.scheduleChanges++
	w.late &^= schedulePatches
}

// apply carries a request out as the API server does, or the instance that it asks. The answer is good or not: the cluster
// is healthy, nobody uses an instance, no Backup runs.
func (w *world) apply(r request, good bool) Completed {
	result := Completed{Action: r.action}
	if r.stale {
		result.Outcome = Conflict
		return result
	}
	switch r.action { //nolint:exhaustive // the others change nothing here
	case ListBackups: // one that a schedule began since would not be seen
		w.noBackup = good && w.acknowledged != "" && w.schedule >= suspended
		result.Blocker = unless(good, idle.ReasonBackupRunning)
	case AskSiblings:
		w.standbyIdle, w.primaryIdle = good && w.acknowledged != "", false // the primary is sampled last
		result.InUse, result.Blocker = !good, unless(good, idle.ReasonActive)
	case Sample:
		if w.client == unsampled {
			w.client = sampled
		}
		w.primaryIdle = good && w.acknowledged != ""
		result.InUse, result.Blocker = !good, unless(good, idle.ReasonActive)
	case Announce:
		w.announced, w.acknowledged = newest, ""
		w.wrote()
		result.Announcement = newest
	case RemoveAnnouncement:
		w.announced = ""
		w.wrote()
	case Hibernate:
		w.hibernate()
	case Withdraw:
		if !w.ours || w.operator != untouched {
			w.violate("hibernation is turned off although it is not ours, or the operator has begun")
		}
		w.on, w.ours = false, false
		w.wrote()
	case Suspend:
		w.suspend()
	case Resume:
		w.resume()
	}
	if r.action&(clusterPatches|ReadCluster) != 0 {
		w.unhealthy = !good
		result.View = w.view(good)
	}
	return result
}

func unless(good bool, reason idle.Reason) idle.Reason {
	if good {
		return ""
	}
	return reason
}

func (w *world) hibernate() {
	w.switching()
	w.on, w.ours, w.announced = true, true, ""
	w.wrote()
}

// suspend is what SuspendBackups does: it also writes schedules that are suspended and carry our mark.
func (w *world) suspend() {
	w.schedule = max(w.schedule, suspended)
	w.wroteSchedule()
}

// resume is what ResumeBackups does: it takes the mark, and leaves suspended what a person has come to own. That is as if there
// were no schedule, and one that is active is as good as any other.
func (w *world) resume() {
	if w.schedule == active {
		return
	}
	if w.on && w.ours {
		w.violate("schedules are resumed while the cluster sleeps")
	}
	w.schedule = active
	w.wroteSchedule()
}

// restart is a sidecar that starts anew, after a crash, on a new pod, or on the instance that has become primary.
func (w *world) restart() {
	for i := range w.requests {
		w.abandonRequest(i)
	}
	w.machine = Machine{}
	if w.client != unasked && !w.alive() {
		w.client = nobody
	}
	w.expired, w.ended, w.used = false, false, false
	w.behind = w.alive()
	if w.announced == newest {
		if w.acknowledged == newest {
			w.acknowledged = older
		}
		w.announced = older
	}
}

// abandonRequest makes a request one that nobody waits for.
func (w *world) abandonRequest(i int) {
	if r := w.requests[i]; r.progress == sent && !r.stale {
		w.late |= r.action & (clusterPatches | schedulePatches)
	}
	w.requests[i] = request{}
}

// see gives the Machine the newest state of the Cluster; answers that are on their way and older become as new.
func (w *world) see(healthy bool) {
	v := w.view(healthy)
	w.behind, w.moved, w.unhealthy = false, false, !healthy
	for i := range w.requests {
		if r := &w.requests[i]; r.progress == answering && r.result.View != (View{}) {
			r.result.View = v
		}
	}
	w.give(Viewed{v})
}

// answer gives the Machine what came of a request.
func (w *world) answer(i int, result Completed) {
	w.requests[i] = request{}
	w.give(result)
}
