package sleep

// This file asserts what the package promises of dozes: of what is written to the Cluster, of what the Machine asks for, of each
// of its steps, and of every state.

// fencing asserts what must hold when the instance is fenced.
func (w *dozer) fencing() {
	switch {
	case w.announced == "" || w.handover != holding || w.fence != unfenced || w.on:
		w.violate("fenced although the gateway does not hold every client")
	case !w.sampled: // which includes that the Backups were listed and the Cluster was read
		w.violate("fenced, and Backups, Cluster and instance were not asked in this order since the gateway holds")
	case w.visited:
		w.violate("fenced although a client has come since the last sample")
	case !w.suspended:
		w.violate("fenced with an active schedule")
	case w.endpoint && !w.excused:
		w.violate("fenced although Services lead to the instance")
	}
}

// recording asserts what must hold when it is recorded that PostgreSQL has stopped.
func (w *dozer) recording() {
	if w.fence != ours || w.postgres != stopped {
		w.violate("a stop is recorded, and PostgreSQL runs, or the fence is not ours")
	}
}

// lifting asserts what must hold when the fence is lifted.
func (w *dozer) lifting() {
	if w.fence != ours {
		w.violate("a fence is lifted that is not ours")
	}
}

// removingMarks asserts what must hold when what a doze has left is removed: the gateway passes clients on from then on.
func (w *dozer) removingMarks() {
	if w.since && (w.blame == ours || w.fence == ours) {
		w.violate("the marks are removed although PostgreSQL may still stop")
	}
}

// resuming asserts what must hold when the schedules are resumed.
func (w *dozer) resuming() {
	if w.fence == ours || w.on && w.ours {
		w.violate("schedules are resumed while the cluster sleeps")
	}
}

// switching asserts what must hold when hibernation is turned on, from a doze or without one.
func (w *dozer) switching() {
	switch {
	case w.fence == ours:
	case w.fence == theirs:
		w.violate("switched on, and a person has fenced it")
	case w.announced == "" || w.handover < acknowledged:
		w.violate("switched on without an acknowledged announcement")
	case !w.plain:
		w.violate("switched on, and it was not sampled since the acknowledgement")
	case !w.suspended:
		w.violate("switched on with an active schedule")
	}
}

// withdrawing asserts what must hold when hibernation is turned off.
func (w *dozer) withdrawing() {
	if !w.ours || w.operator != untouched {
		w.violate("hibernation is turned off although it is not ours, or the operator has begun")
	}
}

// asked asserts what must hold when an action is asked for, and takes those in that are not answered.
func (w *dozer) asked(a Action) {
	m := w.machine
	switch a { //nolint:exhaustive // the others change nothing here
	case Announce:
		w.expired = false
		if m.doze && !w.prepared {
			w.violate("announced although PostgreSQL is not prepared")
		}
	case Fence:
		if w.expired || !m.view.permits(true) || !m.unready {
			w.violate("the fence is asked for although the time is nearly over, the Cluster forbids it, or the pod is ready")
		}
	case Hibernate:
		if !w.listed && m.view.Fenced {
			w.violate("hibernation is requested, and the Backups were not listed since the cluster dozes")
		}
	case LeaveMarker:
		if m.view.Fenced {
			w.violate("the marker is left, and there is no PostgreSQL to shut down")
		}
	case RestoreReadiness:
		w.closed, w.leased = false, false
		if w.blame == ours || w.fence == ours && !w.behind || w.late&Fence != 0 {
			w.violate("readiness is restored although PostgreSQL may still stop")
		}
	case CancelWait:
		w.cancelled = true
	}
}

// stepped asserts what must hold after a step.
func (w *dozer) stepped(before Machine, e Event) {
	m := w.machine
	for _, r := range w.requests { // what a phase leaves behind would be answered to another
		if r.progress != unused && m.pending&r.action == 0 {
			w.violate("%s is under way and not pending", r.action)
		}
	}
	switch e := e.(type) {
	case Observed:
		if before.phase == Awake && m.phase.Attempting() && before.resume == resumeFirst && !before.resumeWaits {
			w.violate("an attempt is made although the schedules of the last one only wait for the pod to be ready")
		}
		if !e.IdleRestarted && before.backoff != none && m.phase != before.phase && (!before.doze || e.Doze) {
			w.violate("another attempt is made before the wait is over")
		}
	case Completed:
		if e.Outcome != Done && before.phase == m.phase && m.pending&e.Action != 0 && e.Action&(AwaitStop|AwaitServing) == 0 {
			w.violate("%s has failed, and is repeated at once", e.Action)
		}
	case Timeout:
		w.expired = w.expired || e.Timer == TimerExpiry
	case Viewed:
	}
	if m.phase >= LeavingServices && m.phase <= Sampling && m.unready && m.pending&WithdrawReadiness == 0 && (m.abandoned || m.expired) {
		w.violate("the attempt is given up, and the pod is not ready again at once")
	}
	if before.phase >= LeavingServices && before.phase <= Sampling && !m.phase.Attempting() && m.unready {
		w.violate("the attempt is over, and the pod is not ready again at once")
	}
}

// led reports whether the Service leads to the gateway.
func (w *dozer) led() bool {
	_, decided := w.decided()
	return len(decided.Lead) != 0
}

func (w *dozer) broken() string { return w.violation }

// check asserts what must hold in every state.
func (w *dozer) check() {
	m := w.machine
	atRest := m.pending == 0 && !w.behind && w.late == 0
	switch {
	case m.phase == Awake && m.pending == 0 && m != Machine{
		phase: Awake, view: m.view, retries: m.retries, resume: m.resume, resumeWaits: m.resumeWaits, doze: m.doze,
	}:
		w.violate("an attempt that is over leaves something behind")
	case m.phase == LeavingServices && m.pending == 0 && (!m.view.permits(true) || m.view.Announced != m.announcement):
		w.violate("the pod is kept from being ready although the Cluster forbids the doze")
	case m.waits && m.phase != Verifying && m.phase != Retracting && m.phase != Stopping && m.phase != Unfencing:
		w.violate("%s waits to try again", m.phase)
	case m.phase == Awake && atRest && (w.announced != "" || w.since || w.recorded || w.fence == ours || w.on):
		w.violate("awake and at rest, and something is left on the Cluster")
	case m.phase == Awake && atRest && m.resume == resumed && w.suspended:
		w.violate("at rest, and schedules carry our mark")
	case m.phase != Starting && w.late&Fence != 0 && !w.leased && m.pending&WithdrawReadiness == 0 && !w.behind:
		w.violate("a fence may still come, and nothing keeps the pod from being ready")
	case m.phase == Awake && w.leased:
		w.violate("awake, and the pod is kept from being ready")
	case (w.fence == ours || w.since && w.fence == unfenced && w.blame == ours) && (!w.on || w.ours) && !w.led():
		w.violate("PostgreSQL may stop, and its Service does not lead to the gateway")
	case m.phase == Dozing && atRest && (w.postgres != stopped || !w.leased || w.fence != ours):
		w.violate("dozing, and PostgreSQL runs, or the pod is ready")
	}
}

// settled reports whether the state is one to stay in, in which a client is served, or wakes the cluster, or is told.
func (w *dozer) settled() bool {
	m := w.machine
	switch {
	case w.on:
		return w.operator == gone && w.fence != ours
	case !w.alive() || w.behind || w.late != 0 || m.pending != 0:
		return false
	case m.phase == Dozing:
		return w.fence == ours && w.recorded && w.postgres == stopped && !w.endpoint
	default:
		return m.phase == Awake && m.resume == resumed && !w.suspended && w.announced == "" && !w.since && w.fence == unfenced &&
			w.postgres == running && w.blame == unfenced && w.endpoint
	}
}
