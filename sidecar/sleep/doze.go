package sleep

// settleFenced enters the phase that the Cluster determines while the instance is fenced by us.
func (s *step) settleFenced() {
	switch v := s.view; {
	case !s.unready:
		s.waits = false
		s.enterUnready(Stopping, AwaitStop)
	case s.mustUnfence || !v.MayDoze:
		s.waits = false
		s.enter(Unfencing, LiftFence)
	case v.Stopped:
		s.phase, s.waits = Dozing, false
	case s.phase != Stopping:
		s.waits = false
		s.enter(Stopping, AwaitStop)
	}
}

// hibernateDozing hibernates a cluster that dozes. One that is not healthy is woken instead: the operator would not
// hibernate it.
func (s *step) hibernateDozing() {
	switch {
	case !s.view.Primary:
	case !s.view.Healthy:
		s.mustUnfence = true
		s.settle()
	default:
		s.doze = false
		s.enter(ListingBackups, ListBackups)
	}
}

// fenced handles the result of an action while PostgreSQL is stopped for a doze, or may be.
func (s *step) fenced(e Completed) {
	switch {
	case e.Action == AwaitStop && e.Outcome == Done && s.view.dozes():
		s.do(RecordStop)
	case e.Action == AwaitServing && e.Outcome == Done:
		s.restore()
		s.restarted = s.view.DozeEnding && !s.view.Fenced
	case e.Action == AskManager && e.Outcome == Done && e.Ignored && s.pending&AwaitStop != 0 && s.view.dozes():
		s.ignored()
	case e.Action&(RecordStop|LiftFence|ReadCluster) != 0:
		s.fenceChangeCompleted(e)
	}
	if s.pending != 0 || s.waits && s.view.dozes() {
		return
	}
	s.waits, s.phase = false, Awake
	s.settle()
}

// ignored lifts the fence, because the instance manager does not stop PostgreSQL.
func (s *step) ignored() {
	s.mustUnfence = true
	s.report(Report{Result: ResultWithdrawn, Doze: true})
	s.wait(long)
	s.do(CancelWait)
}

// fenceChangeCompleted handles the result of a change of the fenced Cluster, or of reading it after such a change has
// failed. The operator writes the Cluster at the same time, so the first conflict is resolved at once.
func (s *step) fenceChangeCompleted(e Completed) {
	switch {
	// It was removed at once.
	case e.Outcome == Done && e.Action == RecordStop && e.View.dozes() && !e.View.Stopped:
		s.setView(e.View)
		s.tryAgain()
	case e.Outcome == Done:
		if s.setView(e.View); e.Action != ReadCluster {
			s.tries = 0
		}
	case e.Outcome == Conflict && s.tries == 0:
		s.tries = 1
		s.do(ReadCluster)
	default:
		s.tryAgain()
	}
}

// restore makes the pod ready again, if it is not.
func (s *step) restore() {
	if s.unready && !s.view.Fenced {
		s.unready = false
		s.do(RestoreReadiness)
	}
}

// enterUnready enters a phase and requests its action, for which the pod must not be ready: otherwise that comes first.
func (s *step) enterUnready(p Phase, a Action) {
	if !s.unready {
		s.unready, a = true, WithdrawReadiness
	}
	s.enter(p, a)
}

// sleepAction returns the action that puts the cluster to sleep.
func (s *step) sleepAction() Action {
	if s.doze {
		return Fence
	}
	return Hibernate
}
