package sleep

import "github.com/cnpg-i/scale-to-zero/sidecar/idle"

// advance continues an attempt once its action is answered.
func (s *step) advance(e Completed) {
	switch {
	case s.phase == Announcing && e.Outcome == Done:
		s.setView(e.View)
		s.announcement = e.Announcement
	case e.Action == ReadCluster && e.Outcome == Done: // in LeavingServices or Confirming
		s.setView(e.View)
	}
	switch {
	case e.Outcome != Done:
		s.fail(e)
	case s.abandoned:
		s.undo()
	case e.Blocker != "":
		s.mustUnfence = s.view.Fenced // what keeps it from hibernating ends the doze too
		s.abandon(e.Blocker)
	case e.Action == WithdrawReadiness:
		s.do(ReadCluster)
	case s.phase == LeavingServices:
		s.checkServicesLeft()
	default:
		s.next()
	}
}

// checkServicesLeft ends an attempt if the Cluster that was read once the pod's readiness was withdrawn forbids it.
func (s *step) checkServicesLeft() {
	switch {
	// Since before: the pod was not ready for a moment, and may be in its Services again.
	case !s.view.permits(true), s.held():
		s.abandon(idle.ReasonUnknown)
	case !s.handedOver():
		s.abandon(idle.ReasonGatewayUnavailable)
	}
}

// next enters the next phase once nothing is pending.
func (s *step) next() {
	if s.pending != 0 {
		return
	}
	switch s.phase {
	case ListingBackups:
		switch {
		case s.view.Fenced:
			s.enter(Hibernating, Hibernate)
		case s.doze:
			s.enter(Preparing, Prepare)
		default:
			s.enter(Announcing, Announce)
		}
	case Preparing:
		s.enter(Announcing, Announce)
	case Announcing:
		s.phase = AwaitingGateway
		s.proceedIfAcknowledged()
	case Suspending:
		s.enter(AskingSiblings, AskSiblings)
	case AskingSiblings:
		switch {
		case !s.doze:
			s.enter(Confirming, ListBackups, ReadCluster)
		case s.expired:
			s.abandon(idle.ReasonGatewayUnavailable)
		default:
			s.unready = true
			s.enter(LeavingServices, WithdrawReadiness)
		}
	case Confirming:
		s.confirmed()
	case Sampling:
		if s.expired {
			s.abandon(idle.ReasonGatewayUnavailable)
			return
		}
		if s.doze {
			s.enter(Hibernating, Fence)
			return
		}
		s.enter(Hibernating, LeaveMarker, Hibernate)
	default: // the others wait for something other than an action
	}
}

// proceedIfAcknowledged suspends the schedules once the gateway is ready.
func (s *step) proceedIfAcknowledged() {
	switch {
	case !s.view.permits(s.doze):
		s.abandon(idle.ReasonUnknown)
	case s.expired, s.view.Announced != s.announcement: // it took too long, or somebody removed it
		s.abandon(idle.ReasonGatewayUnavailable)
	case s.handedOver():
		s.mustResume()
		s.enter(Suspending, Suspend)
	}
}

// confirmed samples this instance for the last time if the Cluster still permits sleep.
func (s *step) confirmed() {
	switch {
	case !s.view.permits(s.doze):
		s.abandon(idle.ReasonUnknown)
	case !s.handedOver() || !s.held():
		s.abandon(idle.ReasonGatewayUnavailable)
	default:
		s.enter(Sampling, Sample)
	}
}

// hibernated handles the result of the hibernation patch.
func (s *step) hibernated(e Completed) {
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
}

// patchApplied continues once the patch is known to have turned hibernation on, or set the fence.
func (s *step) patchApplied() {
	s.announcement, s.backoff, s.tries = "", none, 0
	s.report(Report{Result: ResultSuccess, Doze: !s.view.HibernationOn})
	if s.doze && s.withdrawal != keep {
		s.withdrawal, s.mustUnfence = keep, s.view.Fenced
		s.report(Report{Result: ResultWithdrawn, Reason: idle.ReasonActive, Doze: true})
	}
	s.settle()
	s.withdrawIfAsked()
}

// abandon ends an attempt because of a blocker.
func (s *step) abandon(reason idle.Reason) {
	if s.abandoned {
		return
	}
	s.report(Report{Result: ResultAborted, Reason: reason, Doze: s.doze})
	switch reason {
	case idle.ReasonSiblingUnknown, idle.ReasonSiblingOutdated, idle.ReasonSiblingActive, idle.ReasonGatewayUnavailable,
		idle.ReasonUnknown, idle.ReasonArchiverBehind, idle.ReasonArchiverSlow, idle.ReasonEndpointsRemain:
		s.wait(long)
	default:
		s.backoff, s.tries = none, 0
		if s.doze && reason == idle.ReasonConnecting { // each attempt takes the pod out of its Services
			s.wait(long)
		}
	}
	s.abandoned = true
	s.undo()
}

// fail ends an attempt because an action did not take effect.
func (s *step) fail(e Completed) {
	if !s.abandoned {
		result := ResultError
		if e.Outcome == Conflict {
			result = ResultConflict
		}
		s.report(Report{Result: result, Action: e.Action, Doze: s.doze})
		s.wait(s.afterFailure(e.Outcome))
	}
	s.abandoned = true
	s.undo()
}

// afterFailure returns the kind of wait after an action that did not take effect. An attempt to doze costs a checkpoint
// and a WAL file, and takes the pod out of its Services, so the next one is made soon only after a conflict, which does
// not last.
func (s *step) afterFailure(o Outcome) backoff {
	if s.doze && o != Conflict {
		return long
	}
	return short
}

// wait delays the next attempt, each time for longer.
func (s *step) wait(b backoff) {
	if s.backoff = b; s.tries < maximumTries {
		s.tries++
	}
}

// undo undoes an attempt once nothing is pending.
func (s *step) undo() {
	if s.doze && s.pending&WithdrawReadiness == 0 {
		s.restore() // first, because it does not need the API server
	}
	if s.pending != 0 {
		return
	}
	s.abandoned, s.expired, s.withdrawal = false, false, keep
	if s.announcement == "" {
		s.phase = Awake
		s.settle()
		return
	}
	s.enter(Retracting, ReadCluster)
}
