package sleep

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// fence is whose fence is on the Cluster.
type fence uint8

const (
	unfenced fence = iota
	ours
	theirs
)

// handover is how far the gateway has followed the announcement.
type handover uint8

const (
	direct handover = iota
	acknowledged
	holding
)

// postgres is the state of PostgreSQL.
type postgres uint8

const (
	running postgres = iota
	stopping
	stopped
)

// dozer is a cluster of one instance that may doze: its Machine and the models of everything around it. It is a value.
// Like [world], it omits what matters only when it is queried.
type dozer struct {
	machine Machine
	// The API server. mayDoze is the policy of the cluster.
	announced         string
	ofDoze            bool // the announcement
	handover          handover
	fence             fence
	since, recorded   bool // the marks: a doze has begun, and PostgreSQL has stopped since
	on, ours, mayDoze bool
	operator          stage
	suspended         bool // the schedules
	requests          [4]request
	late              Action
	// behind says that the watch has not brought the newest state, and meddled that a person has made a change that it has not
	// brought: they make no other one as fast.
	behind, meddled bool
	// The instance manager. blame is whose fence may stop the PostgreSQL that runs, although it may have been lifted.
	postgres postgres
	blame    fence
	// The kubelet: closed says that the readiness port is, leased that this process keeps it closed, and endpoint that Services lead
	// to the pod. excused says that the port opened by itself, since the process that kept it closed has gone.
	closed, leased, endpoint, excused bool
	// cancelled says that AwaitStop or AwaitServing is to end.
	cancelled bool
	// lags says that a replica of the gateway does not know yet that it must hold. unproven says that the gateway knows that
	// PostgreSQL was about to stop, and neither that it has stopped nor that Services lead to the pod again.
	lags, unproven bool
	// What the promises are about besides: what was done for this attempt, and since the gateway holds; whether a client has come
	// since the last sample.
	prepared, listed, read, sampled, expired, visited bool
	// plain says that the instance was idle at its newest sample since the acknowledgement.
	plain bool
	// violation is a promise that was broken; empty: none.
	violation string
}

func (w *dozer) view(healthy bool) View {
	v := View{
		Primary: true, Healthy: healthy, NotReady: !w.endpoint, MayDoze: w.mayDoze, // the operator and Services know of it alike
		HibernationOn: w.on, OwnsHibernation: w.on && w.ours, HibernationBegun: w.operator != untouched,
		Announced: w.announced,
		Fenced:    w.fence == ours, Stopped: w.recorded, DozeEnding: w.since || w.recorded,
	}
	if w.handover >= acknowledged {
		v.Acknowledged = w.announced
	}
	if w.handover == holding {
		v.Holding = w.announced
	}
	return v
}

// decided is what the plugin reads of the Cluster, and has the gateway do. It does not lag, and its Service leads to the gateway.
func (w *dozer) decided() (plan.Cluster, plan.Plan) {
	cluster := planned(w.view(true))
	cluster.MayStillStop = w.since && !w.recorded && w.fence == unfenced && !w.on
	if w.ofDoze {
		cluster.Announced, cluster.Acknowledged, cluster.HoldingValue = ofDoze(cluster.Announced), ofDoze(cluster.Acknowledged), ofDoze(cluster.HoldingValue)
	}
	service := plan.Service{UID: "rw", Led: true, Direct: w.endpoint, Ready: w.endpoint}
	return cluster, plan.Decide(plan.State{Cluster: cluster, Services: []plan.Service{service}}, beforeDeadline)
}

// alive reports whether the pod is there.
func (w *dozer) alive() bool { return w.operator != gone }

// violate remembers the first promise that was broken.
func (w *dozer) violate(format string, arguments ...any) {
	if w.violation == "" {
		w.violation = fmt.Sprintf(format, arguments...)
	}
}

// give gives the Machine an event and sends what it asks for.
func (w *dozer) give(e Event) {
	before := w.machine
	machine, out := Step(w.machine, e)
	w.machine = machine
	for _, a := range out.Actions {
		w.asked(a)
		if a&answered != 0 {
			w.send(a)
		}
	}
	w.stepped(before, e)
	w.forget()
}

// forget forgets what makes no difference any more, so that worlds that go on alike are one.
func (w *dozer) forget() {
	m := &w.machine
	m.attempts, m.tries, m.resumeTries = 0, 0, 0 // they change how long waits are, and nothing else
	m.backoff = min(m.backoff, short)
	if m.resume == resumeAgain { // a request to suspend is never late in here
		m.resume, m.resumeWaits = resumed, false
	}
	if m.phase == Verifying || m.phase == Retracting { // the Cluster is read before they are left
		m.view, m.announcement = View{Primary: true, HibernationOn: m.view.HibernationOn, Fenced: m.view.Fenced}, ""
	}
	w.meddled = w.meddled && w.behind
	slices.SortFunc(w.requests[:], func(a, b request) int { return cmp.Compare(a.action, b.action) })
	w.visited = w.visited && w.sampled
	if !m.phase.Attempting() {
		w.expired, w.prepared = false, false
		if w.late&Fence == 0 {
			w.listed, w.read, w.sampled, w.visited = false, false, false, false
		}
		if w.late&Hibernate == 0 {
			w.plain = false
		}
	}
	w.excused = w.excused && (w.fence == ours || w.blame == ours || w.late&Fence != 0)
	w.cancelled = w.cancelled && m.pending&(AwaitStop|AwaitServing) != 0
	w.lags = w.lags && w.handover == holding
	w.unproven = w.unproven && w.alive() && (!w.endpoint || w.excused)
}

// fencePatches are the requests that demand a resourceVersion of the Cluster.
const fencePatches = clusterPatches | Fence | RecordStop | LiftFence

func (w *dozer) send(a Action) {
	for i := range w.requests {
		if w.requests[i].progress == unused {
			w.requests[i] = request{action: a, progress: sent, stale: w.behind && a&fencePatches != 0}
			return
		}
	}
	w.violate("more than %d actions at once", len(w.requests))
}

// wrote says that the Cluster has changed.
func (w *dozer) wrote() {
	w.behind = w.alive()
	if w.announced == "" {
		w.handover, w.ofDoze = direct, false
	}
	if w.handover == direct {
		w.plain = false
	}
	if w.handover != holding && !w.machine.view.Fenced {
		w.listed, w.read, w.sampled = false, false, false
	}
	for i := range w.requests {
		if r := &w.requests[i]; r.progress == sent && r.action&fencePatches != 0 {
			r.stale = true
		}
	}
	w.late &^= fencePatches // they can only fail
}

// apply carries a request out as the API server does, or the instance that it asks. The answer is good or not: the cluster is
// healthy, nobody uses the instance, no Backup runs, the archiver is fast, the instance manager obeys.
func (w *dozer) apply(r request, good bool) Completed {
	result := Completed{Action: r.action}
	if r.stale {
		result.Outcome = Conflict
		return result
	}
	switch r.action {
	case ListBackups:
		w.listed = good && (w.handover == holding && w.suspended || w.machine.view.Fenced)
		result.Blocker = unless(good, idle.ReasonBackupRunning)
	case Prepare:
		w.prepared = good
		result.Blocker = unless(good, idle.ReasonArchiverSlow)
	case ReadCluster:
		w.read = w.handover == holding
	case Sample:
		w.sampled, w.visited = good && w.handover == holding && w.read && w.listed, false
		w.plain = good && w.handover >= acknowledged
		result.InUse, result.Blocker = !good, unless(good, idle.ReasonActive)
	case AskManager:
		result.Ignored = !good
	case WithdrawReadiness:
		w.closed, w.leased = true, true
	default:
		w.patch(r.action)
	}
	if r.action&(fencePatches|ReadCluster) != 0 {
		result.View = w.view(good)
	}
	if r.action == Announce {
		result.Announcement = newest
	}
	return result
}

// patch carries out what changes the Cluster or its schedules.
func (w *dozer) patch(a Action) {
	switch a {
	case Suspend:
		w.suspended = true
		return
	case Resume:
		w.resuming()
		w.suspended = false
		return
	case Announce:
		w.announced, w.ofDoze, w.handover = newest, w.machine.doze, direct
	case RemoveAnnouncement:
		w.removingMarks()
		w.announced, w.since, w.recorded = "", false, false
	case Fence:
		w.fencing()
		w.fence, w.since, w.recorded, w.announced = ours, true, false, ""
		w.unproven = true
		if w.postgres == running {
			w.blame = ours
		}
	case RecordStop:
		w.recording()
		w.recorded, w.unproven = true, false
	case LiftFence:
		w.lifting()
		w.fence = unfenced
	case Hibernate:
		w.switching()
		w.on, w.ours, w.announced = true, true, ""
	case Withdraw:
		w.withdrawing()
		w.on, w.ours = false, false
	default:
		return
	}
	w.wrote()
}

// restart is a sidecar that starts anew.
func (w *dozer) restart() {
	for i := range w.requests {
		w.abandonRequest(i)
	}
	w.machine = Machine{}
	if w.blame == ours && w.fence != ours && !w.since { // a Cluster that was replaced does not tell the next process of our fence
		w.blame = w.fence
	}
	w.expired, w.leased, w.cancelled = false, false, false
	w.behind = w.alive()
	if w.announced == newest {
		w.announced = older
	}
	w.forget()
}

// replace is a new pod, whose PostgreSQL does not run yet.
func (w *dozer) replace() {
	w.restart()
	w.postgres, w.blame, w.recorded = stopped, unfenced, false
	w.closed, w.endpoint = false, false
}

// abandonRequest makes a request one that nobody waits for.
func (w *dozer) abandonRequest(i int) {
	if r := w.requests[i]; r.progress == sent && !r.stale {
		w.late |= r.action & fencePatches
	}
	w.requests[i] = request{}
}

// see gives the Machine the newest state of the Cluster; answers that are on their way and older become as new.
func (w *dozer) see(healthy bool) {
	v := w.view(healthy)
	w.behind = false
	for i := range w.requests {
		if r := &w.requests[i]; r.progress == answering {
			r.result.View = v
		}
	}
	w.give(Viewed{v})
}

// answer gives the Machine what came of a request.
func (w *dozer) answer(i int, result Completed) {
	w.requests[i] = request{}
	w.give(result)
}

// key packs the world.
func (w *dozer) key() key {
	p := &packer{}
	p.machine(&w.machine)
	p.announcement(w.announced)
	p.number(int(w.handover), 3)
	p.number(int(w.fence), 3)
	p.flags(w.ofDoze, w.since, w.recorded, w.on, w.ours, w.mayDoze, w.suspended, w.behind)
	p.number(int(w.operator), 3)
	p.number(int(w.late), int(answered)+1)
	p.number(int(w.postgres), 3)
	p.number(int(w.blame), 3)
	p.flags(w.meddled, w.closed, w.leased, w.endpoint, w.excused, w.cancelled, w.lags, w.unproven)
	p.flags(w.prepared, w.listed, w.read, w.sampled, w.expired, w.visited, w.plain)
	for _, r := range w.requests {
		p.request(r)
	}
	return p.key
}
