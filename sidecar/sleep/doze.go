package sleep

// fenced handles the result of an action while PostgreSQL is stopped for a doze, or may be.
func (s *step) fenced(e Completed) {
	switch {
	case e.Action == AwaitStop && e.Outcome == Done && s.view.dozes():
		s.do(RecordStop)
	case e.Action == AwaitServing && e.Outcome == Done:
		s.restore()
		s.restarted = s.view.DozeEnding && !s.view.Fenced
	// The instance manager does not stop PostgreSQL.
	case e.Action == AskManager && e.Outcome == Done && e.Ignored && s.pending&AwaitStop != 0 && s.view.dozes():
		s.mustUnfence = true
		s.report(Report{Result: ResultWithdrawn, Doze: true})
		s.wait(long)
		s.do(CancelWait)
	case e.Action&(RecordStop|LiftFence|ReadCluster) == 0:
	case e.Outcome == Done && e.Action == RecordStop && e.View.dozes() && !e.View.Stopped: // it was removed at once
		s.setView(e.View)
		s.tryAgain()
	case e.Outcome == Done:
		if s.setView(e.View); e.Action != ReadCluster {
			s.tries = 0
		}
	case e.Outcome == Conflict && s.tries == 0: // the operator writes the Cluster at the same time
		s.tries = 1
		s.do(ReadCluster)
	default:
		s.tryAgain()
	}
	if s.pending != 0 || s.waits && s.view.dozes() {
		return
	}
	s.waits, s.phase = false, Awake
	s.settle()
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
