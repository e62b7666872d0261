package sleep

import "slices"

// This file asserts what the package promises: of the moment at which hibernation is turned on, of what the Machine asks for, of
// each of its steps, and of every state.

// switching asserts what must hold when hibernation is turned on.
func (w *world) switching() {
	switch {
	case w.announced == "" || w.acknowledged != w.announced:
		w.violate("switched on without an acknowledged announcement")
	case !w.primaryIdle, !w.standbyIdle:
		w.violate("switched on, and not every instance was idle at its newest sample since the acknowledgement")
	case !w.noBackup:
		w.violate("switched on, and a Backup ran when they were last listed since the acknowledgement")
	case w.schedule < suspended:
		w.violate("switched on with an active schedule")
	}
}

// asked asserts what must hold when an action is asked for, and takes those in that are not answered.
func (w *world) asked(a Action) {
	m := w.machine
	switch a { //nolint:exhaustive // the others change nothing here
	case Announce:
		w.expired = false
	case Suspend:
		if !m.view.permits(false) || m.view.Announced != m.announcement || !m.view.acknowledges(m.announcement) {
			w.violate("schedules are suspended although the Cluster forbids sleep, or the gateway does not stand ready")
		}
	case Resume:
		if m.view.NotReady {
			w.violate("schedules are resumed although the primary is known not to be ready")
		}
	case Hibernate:
		switch {
		case w.unhealthy:
			w.violate("hibernation is requested although the Cluster is known to be unhealthy")
		case w.expired:
			w.violate("hibernation is requested although the announcement's time is nearly over")
		case !w.marked:
			w.violate("hibernation is requested before the marker is left")
		}
	case LeaveMarker:
		w.marked = true
	case RemoveMarker:
		w.marked = false
	case EndSessions:
		if w.ended = true; !m.view.HibernationOn || !m.view.OwnsHibernation || m.withdrawal != keep {
			w.violate("sessions are ended although it is not us who puts the cluster to sleep, or the sleep is taken back")
		}
	case Withdraw:
		w.used = false
	}
	if a&(clusterPatches|schedulePatches) != 0 && !m.view.Primary {
		w.violate("a standby asks for %s", a)
	}
}

// stepped asserts what must hold after a step.
func (w *world) stepped(before Machine, e Event, reports []Report) {
	m := w.machine
	for _, r := range w.requests { // what a phase leaves behind would be answered to another
		if r.progress != unused && m.pending&r.action == 0 {
			w.violate("%s is under way and not pending", r.action)
		}
	}
	if before.phase.Attempting() && before.phase != Hibernating && against(before, e) && m.phase.Attempting() && !m.abandoned {
		w.violate("the attempt goes on although something speaks against sleep")
	}
	if before.abandoned && m.abandoned && len(reports) != 0 {
		w.violate("the end of an attempt is reported twice")
	}
	switch e := e.(type) {
	case Observed:
		if before.phase == Awake && m.phase.Attempting() && before.resume == resumeFirst && !before.resumeWaits {
			w.violate("an attempt is made although the schedules of the last one only wait for the pod to be ready")
		}
		w.used = w.used || e.InUse && before.phase == Hibernating
		if !e.IdleRestarted && before.phase == Awake && before.backoff != none && m.phase != Awake {
			w.violate("another attempt is made before the wait is over")
		}
	case Completed:
		w.used = w.used || e.InUse && before.phase == HibernationOn
		if e.Outcome != Done && before.phase == m.phase && m.pending&e.Action != 0 {
			w.violate("%s has failed, and is repeated at once", e.Action)
		}
		success := slices.ContainsFunc(reports, func(r Report) bool { return r.Result == ResultSuccess })
		if success && e.Action == ReadCluster && (!e.View.HibernationOn || !e.View.OwnsHibernation) {
			w.violate("success is reported, and hibernation is not on, or not ours")
		}
	case Timeout:
		w.timedOut(e.Timer)
	}
	if !m.view.HibernationOn && m.phase != Hibernating && m.phase != Verifying && m.phase != Retracting || m.phase == Asleep {
		w.used = false
	}
	w.ended = w.ended && m.view.HibernationOn
}

// timedOut asserts what must hold once a timer has run out.
func (w *world) timedOut(t Timer) {
	m := w.machine
	switch {
	case t == TimerExpiry:
		w.expired = true
	case t == TimerRecheck && m.phase == Asleep && m.view.OwnsHibernation && !w.ended:
		w.violate("the cluster falls asleep, and the sessions that do not count are not ended")
	case t == TimerRecheck && m.phase == HibernationOn && m.pending&(Sample|AskSiblings) != Sample|AskSiblings:
		w.violate("hibernation is on, and not every instance is sampled again")
	case t == TimerOperator && m.phase == HibernationOn && m.withdrawal == keep:
		w.violate("hibernation stays on although the operator has not begun in time")
	}
}

// against reports whether an event speaks against sleep, in an attempt.
func against(m Machine, e Event) bool {
	switch e := e.(type) {
	case Viewed:
		return !e.View.permits(m.doze) || m.phase >= AwaitingGateway && e.View.Announced != m.announcement ||
			m.phase >= Suspending && !e.View.acknowledges(m.announcement)
	case Observed:
		return e.Blocker != ""
	case Completed:
		return e.Blocker != "" || e.Outcome != Done
	default:
		return false
	}
}

// check asserts what must hold in every state.
func (w *world) check() {
	m := w.machine
	quiet := m.phase == Awake && m.pending == 0 && m.resume == resumed && !w.behind && w.late == 0
	switch {
	case quiet && w.primary && w.schedule != active:
		w.violate("at rest, and schedules carry our mark")
	case quiet && w.primary && w.announced != "":
		w.violate("at rest, and an announcement is there")
	case quiet && w.on:
		w.violate("awake, and hibernation is on")
	case quiet && w.marked:
		w.violate("at rest, and the marker is left")
	case m.phase == Asleep && m.view.OwnsHibernation && !w.ended:
		w.violate("the cluster falls asleep, and the sessions that do not count are not ended")
	case m.waits && m.phase != Verifying && m.phase != Retracting, m.phase == Awake && m != Machine{
		phase: Awake, view: m.view, retries: m.retries, resume: m.resume, resumeWaits: m.resumeWaits,
	}:
		w.violate("an attempt that is over leaves something behind")
	case m.phase == HibernationOn && m.pending == 0 && !w.ended && m.withdrawal == keep:
		w.violate("hibernation is on, and the sessions that do not count are not ended")
	case m.phase == HibernationOn && m.pending == 0 && w.used && m.withdrawal == keep:
		w.violate("hibernation stays on although the instance was used meanwhile")
	}
}

func (w *world) broken() string { return w.violation }

// settled reports whether the state is one to stay in, in which a client is served or told.
func (w *world) settled() bool {
	if w.on {
		return w.operator == gone // a client wakes it, or is refused because a person hibernated it
	}
	resumes := w.primary && w.machine.resume != resumed
	return w.alive() && w.machine.phase == Awake && !resumes && w.announced == "" && w.schedule == active
}

// timersRunning are the timers that run, in order.
func timersRunning(m Machine) []Timer {
	timers := m.Timers()
	return slices.DeleteFunc(slices.Collect(Timers()), func(t Timer) bool { _, ok := timers[t]; return !ok })
}
