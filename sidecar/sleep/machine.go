package sleep

import "github.com/cnpg-i/scale-to-zero/sidecar/idle"

// Phase is the state of a Machine. See the package's diagram.
type Phase uint8

// The phases.
const (
	// Starting has not read the Cluster yet.
	Starting Phase = iota
	// Awake waits until the cluster may sleep. None of our annotations of a sleep is on the Cluster.
	Awake
	// Resuming resumes the schedules.
	Resuming
	// ListingBackups to Hibernating are the phases of an attempt to sleep, in order.
	ListingBackups
	Preparing
	Announcing
	AwaitingGateway
	Suspending
	AskingSiblings
	LeavingServices
	Confirming
	Sampling
	Hibernating
	// Verifying reads the Cluster, because the answer to the patch of Hibernating was lost.
	Verifying
	// Retracting removes the announcement.
	Retracting
	// HibernationOn waits for the operator, which has deleted nothing yet.
	HibernationOn
	// Withdrawing turns hibernation off again.
	Withdrawing
	// Asleep waits until hibernation is turned off: the operator is deleting the pods, or another manager turned it on.
	Asleep
	// Stopping is fenced, and PostgreSQL has not been recorded as stopped.
	Stopping
	// Dozing is fenced, and PostgreSQL has stopped.
	Dozing
	// Unfencing removes the fence.
	Unfencing
	// Restarting waits for PostgreSQL after the fence was removed.
	Restarting
)

// String returns the phase's name.
func (p Phase) String() string {
	return [...]string{
		"Starting", "Awake", "Resuming", "ListingBackups", "Preparing", "Announcing", "AwaitingGateway", "Suspending", "AskingSiblings",
		"LeavingServices", "Confirming", "Sampling", "Hibernating", "Verifying", "Retracting", "HibernationOn", "Withdrawing", "Asleep",
		"Stopping", "Dozing", "Unfencing", "Restarting",
	}[p]
}

// Attempting reports whether the phase is one of an attempt to sleep.
func (p Phase) Attempting() bool { return p >= ListingBackups && p <= Hibernating }

// Fenced reports whether PostgreSQL is stopped for a doze, or may be.
func (p Phase) Fenced() bool { return p >= Stopping }

// backoff is the kind of wait before the next attempt.
type backoff uint8

const (
	none backoff = iota
	short
	long
)

// withdrawal is why hibernation must be turned off again.
type withdrawal uint8

const (
	keep withdrawal = iota
	becauseOfUse
	becauseOfOperator
)

// resume is what remains to be done for the schedules.
type resume uint8

const (
	resumed resume = iota
	resumeAgain
	resumeFirst
)

// maximumTries is the number of failures at which no wait grows any more.
const maximumTries = 10

// retries is how long the next attempt, or the next try of a request, is delayed.
type retries struct {
	backoff backoff
	// attempts are those that have led to a long wait, and tries the other failures. Both are counted from the last
	// success, from when the idle time began anew, or from a blocker that is no failure.
	attempts, tries uint8
	// due says that the wait ended in Resuming, where no attempt begins.
	due bool
}

// Machine is the state of an instance with respect to sleep. It is a value; the zero value is an instance that has just
// started.
type Machine struct {
	phase Phase
	view  View
	// announcement is ours; empty before it is written.
	announcement string
	// pending are the unanswered actions. A phase is only left when there are none.
	pending Action
	// abandoned says that the attempt has been given up and only waits for pending.
	abandoned bool
	// expired says that the announcement is about to expire.
	expired bool
	// waits says that an action of Verifying, Retracting, Stopping or Unfencing has failed, and that the Cluster is
	// read after a wait.
	waits bool
	// doze says that the current or last attempt is one to doze, unready that the pod's readiness is withdrawn, and
	// mustUnfence that the fence must be removed.
	doze, unready, mustUnfence bool
	// restarted says that a postmaster serves that no fence will stop, while annotations of the doze are still on the
	// Cluster.
	restarted  bool
	withdrawal withdrawal
	retries
	// resume says that schedules may carry our mark, or may still get it: a request to suspend them whose answer was
	// lost may yet take effect. resumeWaits says that the next try to resume them is not due.
	resume      resume
	resumeWaits bool
	resumeTries uint8
}

// Phase returns the Machine's phase.
func (m Machine) Phase() Phase { return m.phase }

// ToDoze reports whether the current or last attempt is one to doze rather than to hibernate.
func (m Machine) ToDoze() bool { return m.doze }

// Abandoned reports whether the attempt has been given up and only waits for the answers to its actions.
func (m Machine) Abandoned() bool { return m.abandoned }

// Waits reports whether the Machine waits before its next attempt.
func (m Machine) Waits() bool { return m.phase == Awake && m.backoff != none }

// handedOver reports whether our announcement is there and the gateway is ready for it.
func (m Machine) handedOver() bool {
	return m.view.Announced == m.announcement && m.view.acknowledges(m.announcement)
}

// held reports whether the gateway also holds every client, if the attempt is to doze.
func (m Machine) held() bool { return !m.doze || m.view.Holding == m.announcement }

// applied reports whether the patch whose answer was lost has taken effect, in the state of the Cluster that was just
// read.
func (m Machine) applied() bool {
	return m.view.HibernationOn && m.view.OwnsHibernation || m.view.Fenced && m.doze
}

// step is the computation of one step.
type step struct {
	Machine
	out Output
}

// Step returns the Machine after an event, and what is to be done.
func Step(m Machine, e Event) (Machine, Output) {
	s := &step{Machine: m}
	switch e := e.(type) {
	case Viewed:
		s.viewed(e.View)
	case Observed:
		s.observed(e)
	case Completed:
		s.completed(e)
	case Timeout:
		s.timeout(e.Timer)
	}
	return s.Machine, s.out
}

// do requests actions.
func (s *step) do(actions ...Action) {
	for _, a := range actions {
		s.pending |= a & answered
	}
	s.out.Actions = append(s.out.Actions, actions...)
}

// enter enters a phase and requests its actions.
func (s *step) enter(p Phase, actions ...Action) {
	s.phase = p
	s.do(actions...)
}

func (s *step) report(r Report) { s.out.Reports = append(s.out.Reports, r) }

// setView records a state of the Cluster.
func (s *step) setView(v View) {
	was := s.view
	s.view, s.mustUnfence, s.restarted = v, s.mustUnfence && v.Fenced, s.restarted && v.DozeEnding && !v.Fenced
	// The watch may have skipped another primary.
	promoted := v.Primary && (!was.Primary || !v.PrimarySince.Equal(was.PrimarySince))
	if promoted || was.HibernationOn && !v.HibernationOn || was.Fenced && !v.Fenced {
		s.mustResume() // the former primary, or the one that put it to sleep, may have left schedules suspended
	}
}

func (s *step) viewed(v View) {
	wasOurs := s.view.OwnsHibernation
	s.setView(v)
	switch {
	case s.phase == Starting:
		if !v.HibernationOn {
			s.do(RemoveMarker) // an earlier process may have left it
		}
		s.settle()
	// Another's hibernation was turned off meanwhile.
	case s.phase == Asleep && v.HibernationOn && v.OwnsHibernation && !wasOurs:
		s.phase = Awake
		s.settle()
	case s.phase == Awake, s.phase == Asleep, (s.phase == HibernationOn || s.phase == Stopping || s.phase == Dozing) && s.pending == 0,
		s.phase == Unfencing && s.pending == 0 && !v.dozes():
		s.settle()
	case s.phase == Stopping && !v.dozes(), s.phase == Restarting && v.Fenced:
		s.do(CancelWait)
	case (s.phase == Hibernating || s.phase == Verifying) && v.HibernationOn:
		s.endSessions() // the answer to our patch is late or lost
	case s.phase.Attempting() && s.phase != Hibernating && !v.permits(s.doze):
		s.abandon(idle.ReasonUnknown)
	case s.phase == ListingBackups && s.unready && !v.Fenced: // woken
		s.abandon(idle.ReasonActive)
	case s.phase == AwaitingGateway:
		s.proceedIfAcknowledged()
	case s.phase >= Suspending && s.phase <= Sampling && !s.handedOver(),
		(s.phase == Confirming || s.phase == Sampling) && !s.held():
		s.abandon(idle.ReasonGatewayUnavailable)
	}
}

// settle enters the phase that follows from the Cluster, outside of an attempt.
func (s *step) settle() {
	switch v := s.view; {
	// Even if hibernation is on: the operator hibernates no pod that is not ready.
	case !v.Fenced && (s.unready || v.Primary && v.DozeEnding && !s.restarted):
		s.waits, s.withdrawal = false, keep
		s.enterUnready(Restarting, AwaitServing)
	case v.HibernationOn && v.OwnsHibernation && v.Primary && !v.HibernationBegun:
		if s.phase != HibernationOn {
			s.phase, s.waits = HibernationOn, false
			s.endSessions()
		}
	case v.HibernationOn:
		if s.phase != Asleep {
			s.phase, s.withdrawal, s.waits = Asleep, keep, false
			s.endSessions()
		}
	case v.Fenced && !s.unready:
		s.waits = false
		s.enterUnready(Stopping, AwaitStop)
	case v.Fenced && (s.mustUnfence || !v.MayDoze):
		s.waits = false
		s.enter(Unfencing, LiftFence)
	case v.Fenced && v.Stopped:
		s.phase, s.waits = Dozing, false
	case v.Fenced:
		if s.phase != Stopping {
			s.waits = false
			s.enter(Stopping, AwaitStop)
		}
	case s.phase >= Hibernating && s.phase != Retracting: // it was turned off
		s.do(RemoveMarker)
		s.phase, s.withdrawal = Awake, keep
		s.settle()
	case v.Primary && s.phase == Starting && v.held(): // an earlier process may have requested the fence
		s.enterUnready(Retracting, ReadCluster)
	case v.Primary && (v.Announced != "" || v.DozeEnding || v.ForeignMarks):
		s.enter(Retracting, RemoveAnnouncement)
	// The schedules do not wait for the standbys, because no backup is made while they are suspended.
	case s.resume != resumed && !s.resumeWaits && v.Primary && !v.NotReady:
		s.enter(Resuming, Resume)
	default:
		s.phase = Awake
	}
}

// endSessions ends the sessions that do not count if the cluster falls asleep by our hibernation, unless that is to be
// withdrawn. A standby leaves the marker that the primary left before its patch.
func (s *step) endSessions() {
	if s.view.OwnsHibernation && s.withdrawal == keep {
		if !s.view.Primary && !s.view.Fenced {
			s.do(LeaveMarker)
		}
		s.do(EndSessions)
	}
}

func (s *step) observed(e Observed) {
	// What keeps it from dozing may not keep it from hibernating.
	if e.IdleRestarted || s.phase == Awake && s.doze && !e.Doze && e.Blocker == "" {
		s.retries = retries{}
	}
	switch {
	case s.phase == Dozing && e.Blocker == "" && !e.Doze && s.backoff == none && s.pending == 0:
		switch {
		case !s.view.Primary:
		case !s.view.Healthy: // the operator would not hibernate it
			s.mustUnfence = true
			s.settle()
		default:
			s.doze = false
			s.enter(ListingBackups, ListBackups)
		}
	case s.phase == Awake && e.Blocker == "" && s.backoff == none && !s.resumesOnceReady() && s.view.permits(e.Doze):
		s.doze = e.Doze
		s.enter(ListingBackups, ListBackups)
	case (s.phase == Hibernating || s.phase == HibernationOn) && e.InUse && !s.view.Fenced:
		s.withdrawal = becauseOfUse
		s.withdrawIfAsked()
	case s.phase.Attempting() && s.phase != Hibernating && e.Blocker != "":
		s.abandon(e.Blocker)
	}
}

// completed handles the answer to an action.
func (s *step) completed(e Completed) {
	if s.pending&e.Action == 0 {
		return // not requested
	}
	s.pending &^= e.Action
	switch s.phase {
	case Resuming: // repeated once after a success, when an earlier request to suspend schedules can no longer take effect
		switch {
		case e.Outcome != Done:
			s.resumeWaits = true
			s.resumeTries = min(s.resumeTries+1, maximumTries)
		case s.resume == resumeFirst:
			s.resume, s.resumeWaits, s.resumeTries = resumeAgain, true, 0
		default:
			s.resume = resumed
		}
		due := s.due
		s.phase, s.due = Awake, false
		if s.settle(); due && s.phase == Awake {
			s.do(Observe)
		}
	case Hibernating:
		switch e.Outcome {
		case Done:
			s.setView(e.View)
			s.patchApplied()
		case Lost:
			s.enter(Verifying, ReadCluster)
		default:
			s.do(RemoveMarker)
			s.fail(e)
		}
	case Verifying:
		if e.Outcome != Done {
			s.tryAgain()
			return
		}
		if s.setView(e.View); !s.applied() {
			action := Hibernate
			if s.doze {
				action = Fence
			}
			s.do(RemoveMarker)
			s.failed(action, Lost)
		}
		s.removeAnnouncement()
	case Retracting:
		switch {
		case e.Action == WithdrawReadiness: // which the driver repeats if it failed
			s.do(ReadCluster)
		case e.Outcome != Done:
			s.tryAgain()
		case e.Action == ReadCluster:
			s.setView(e.View)
			s.removeAnnouncement()
		default: // no fence was set, because that removes the announcement
			s.setView(e.View)
			s.restore()
			s.retracted()
		}
	case HibernationOn: // sampled again
		if e.InUse {
			s.withdrawal = becauseOfUse
		}
		if s.pending == 0 {
			s.settle()
			s.withdrawIfAsked()
		}
	case Withdrawing:
		s.phase = HibernationOn
		if e.Outcome == Done {
			s.setView(e.View)
			report := Report{Result: ResultWithdrawn}
			if s.withdrawal == becauseOfUse {
				report.Reason = idle.ReasonActive
			}
			s.report(report)
			s.withdrawal, s.tries = keep, 0
			// The operator hibernates a cluster only once it is healthy, which this one becomes only awake.
			s.mustUnfence = s.view.Fenced
		} else { // the operator may have begun, so that the Cluster determines what to do
			s.tries = min(s.tries+1, maximumTries)
		}
		s.settle()
	case Stopping, Dozing, Unfencing, Restarting:
		s.fenced(e)
	default:
		s.advance(e)
	}
}

// resumesOnceReady reports whether the schedules of the last attempt are resumed as soon as the pod is ready. A failed
// resume does not delay an attempt: suspending would fail in the same way, and that is reported.
func (m Machine) resumesOnceReady() bool { return m.resume == resumeFirst && !m.resumeWaits }

// mustResume records that schedules may carry our mark.
func (s *step) mustResume() { s.resume, s.resumeWaits, s.resumeTries = resumeFirst, false, 0 }

func (s *step) timeout(t Timer) {
	switch {
	case t == TimerResume:
		s.resumeWaits = false
		if s.phase == Awake {
			s.settle()
		}
	case t == TimerExpiry:
		if s.expired = true; s.unready && s.phase.Attempting() { // the gateway leaves soon
			s.abandon(idle.ReasonGatewayUnavailable)
		}
	case t == TimerAcknowledgement && s.phase == AwaitingGateway:
		s.abandon(idle.ReasonGatewayUnavailable)
	case t == TimerRetry && s.phase == Resuming:
		s.backoff, s.due = none, true
	case t == TimerRetry && (s.phase == Awake || s.phase == Dozing):
		s.backoff = none
		s.do(Observe)
	case t == TimerRetry && s.waits:
		s.waits = false
		s.do(ReadCluster)
	case t == TimerOperator && s.phase == HibernationOn:
		s.withdrawal = becauseOfOperator
		s.withdrawIfAsked()
	case t == TimerRecheck && s.phase == HibernationOn && s.withdrawal != keep:
		s.withdrawIfAsked()
	case t == TimerRecheck && s.phase == HibernationOn && s.pending == 0:
		s.do(Sample, AskSiblings)
	case t == TimerHolding && s.phase == LeavingServices:
		s.abandon(idle.ReasonEndpointsRemain)
	case t == TimerHeld && s.phase == LeavingServices && s.pending == 0 && s.handedOver() && s.held():
		s.enter(Confirming, ListBackups, ReadCluster)
	case t == TimerManager && s.phase == Stopping && s.pending == AwaitStop:
		s.do(AskManager)
	}
}
