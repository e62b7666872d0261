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
	// The gateway has confirmed too early: the pod was briefly not ready before this attempt, and may be in its Services
	// again.
	case s.phase == LeavingServices && (!s.view.permits(true) || s.held()):
		s.abandon(idle.ReasonUnknown)
	case s.phase == LeavingServices && !s.handedOver():
		s.abandon(idle.ReasonGatewayUnavailable)
	case s.pending != 0, s.phase == LeavingServices: // waits for another answer, or for the gateway to hold every client
	case s.phase == ListingBackups && s.view.Fenced:
		s.enter(Hibernating, Hibernate)
	case s.phase == ListingBackups && s.doze:
		s.enter(Preparing, Prepare)
	case s.phase == ListingBackups, s.phase == Preparing:
		s.enter(Announcing, Announce)
	case s.phase == Announcing:
		s.phase = AwaitingGateway
		s.proceedIfAcknowledged()
	case s.phase == Suspending:
		s.enter(AskingSiblings, AskSiblings)
	case s.phase == AskingSiblings && !s.doze:
		s.enter(Confirming, ListBackups, ReadCluster)
	case s.phase == AskingSiblings && !s.expired:
		s.unready = true
		s.enter(LeavingServices, WithdrawReadiness)
	case s.phase == Confirming && !s.view.permits(s.doze):
		s.abandon(idle.ReasonUnknown)
	case s.phase == Confirming && s.handedOver() && s.held():
		s.enter(Sampling, Sample)
	case s.phase == Confirming, s.expired: // expired when the siblings or the last sample have answered
		s.abandon(idle.ReasonGatewayUnavailable)
	case s.phase == Sampling && s.doze:
		s.enter(Hibernating, Fence)
	case s.phase == Sampling:
		s.enter(Hibernating, LeaveMarker, Hibernate)
	}
}

// proceedIfAcknowledged suspends the schedules once the gateway is ready.
func (s *step) proceedIfAcknowledged() {
	switch {
	case !s.view.permits(s.doze):
		s.abandon(idle.ReasonUnknown)
	case s.expired, s.view.Announced != s.announcement: // it took too long, or the annotation was removed
		s.abandon(idle.ReasonGatewayUnavailable)
	case s.handedOver():
		s.mustResume()
		s.enter(Suspending, Suspend)
	}
}

// patchApplied continues once the patch is known to have turned hibernation on, or set the fence.
func (s *step) patchApplied() {
	s.announcement, s.retries = "", retries{}
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
		// A session that does not count may have gone past the gateway, and the next one will too.
		if s.doze && reason == idle.ReasonConnecting {
			s.wait(long)
		} else {
			s.retries = retries{}
		}
	}
	s.abandoned = true
	s.undo()
}

// fail ends an attempt because an action did not take effect.
func (s *step) fail(e Completed) {
	if !s.abandoned {
		s.failed(e.Action, e.Outcome)
	}
	s.abandoned = true
	s.undo()
}

// failed reports that an action did not take effect, and delays the next attempt.
func (s *step) failed(a Action, o Outcome) {
	result := ResultError
	if o == Conflict {
		result = ResultConflict
	}
	s.report(Report{Result: result, Action: a, Doze: s.doze})
	// An attempt to doze costs a checkpoint and a WAL file, and takes the pod out of its Services, so the next one is
	// made soon only after a conflict, which does not last.
	if s.doze && o != Conflict {
		s.wait(long)
	} else {
		s.wait(short)
	}
}

// wait delays the next attempt, each time for longer.
func (r *retries) wait(b backoff) {
	if r.backoff = b; b == long {
		r.attempts = min(r.attempts+1, maximumTries)
	} else {
		r.tries = min(r.tries+1, maximumTries)
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
