package sleep

import "github.com/cnpg-i/scale-to-zero/sidecar/idle"

// advance continues an attempt once its action is answered.
func (s *step) advance(e Completed) {
	switch {
	case s.phase == Announcing && e.Outcome == Done:
		s.see(e.View)
		s.announcement = e.Announcement
	case s.phase == Confirming && e.Action == ReadCluster && e.Outcome == Done:
		s.see(e.View)
	}
	switch {
	case e.Outcome != Done:
		s.fail(e)
	case s.abandoned:
		s.leave()
	case e.Against != "":
		s.abandon(e.Against)
	default:
		s.next()
	}
}

// next enters the next phase once nothing is pending.
func (s *step) next() {
	if s.pending != 0 {
		return
	}
	switch s.phase {
	case ListingBackups:
		s.enter(Announcing, Announce)
	case Announcing:
		s.phase = AwaitingGateway
		s.proceedIfAcknowledged()
	case Suspending:
		s.enter(AskingSiblings, AskSiblings)
	case AskingSiblings:
		s.enter(Confirming, ListBackups, ReadCluster)
	case Confirming:
		s.confirmed()
	case Sampling:
		if s.expired {
			s.abandon(idle.ReasonGatewayUnavailable)
			return
		}
		s.enter(Hibernating, LeaveMarker, Hibernate)
	default: // the others wait for something other than an action
	}
}

// proceedIfAcknowledged suspends the schedules once the gateway is ready.
func (s *step) proceedIfAcknowledged() {
	switch {
	case !s.view.permits():
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
	case !s.view.permits():
		s.abandon(idle.ReasonUnknown)
	case !s.handedOver():
		s.abandon(idle.ReasonGatewayUnavailable)
	default:
		s.enter(Sampling, Sample)
	}
}

// hibernated handles the result of the switch's patch.
func (s *step) hibernated(e Completed) {
	switch e.Outcome {
	case Done:
		s.see(e.View)
		s.switched()
	case Lost:
		s.enter(Verifying, ReadCluster)
	default:
		s.do(RemoveMarker)
		s.fail(e)
	}
}

// switched continues once the switch is known to be on.
func (s *step) switched() {
	s.announcement, s.backoff, s.tries = "", none, 0
	s.report(Report{Result: ResultSuccess})
	use := s.withdrawal
	if s.settle(); s.phase == SwitchedOn {
		s.withdrawal = use
		s.withdrawIfAsked()
	}
}

// abandon ends an attempt because something speaks against sleep.
func (s *step) abandon(reason idle.Reason) {
	if s.abandoned {
		return
	}
	s.report(Report{Result: ResultAborted, Reason: reason})
	switch reason {
	case idle.ReasonSiblingUnknown, idle.ReasonSiblingOutdated, idle.ReasonSiblingActive, idle.ReasonGatewayUnavailable,
		idle.ReasonUnknown:
		s.wait(long)
	default:
		s.backoff, s.tries = none, 0
	}
	s.abandoned = true
	s.leave()
}

// fail ends an attempt because an action did not take effect.
func (s *step) fail(e Completed) {
	if !s.abandoned {
		result := ResultError
		if e.Outcome == Conflict {
			result = ResultConflict
		}
		s.report(Report{Result: result, Action: e.Action})
		s.wait(short)
	}
	s.abandoned = true
	s.leave()
}

// wait delays the next attempt, each time for longer.
func (s *step) wait(b backoff) {
	if s.backoff = b; s.tries < maximumTries {
		s.tries++
	}
}

// leave undoes an attempt once nothing is pending.
func (s *step) leave() {
	if s.pending != 0 {
		return
	}
	s.abandoned, s.expired = false, false
	if s.announcement == "" {
		s.phase = Awake
		s.settle()
		return
	}
	s.enter(Retracting, ReadCluster)
}
