package sleep

import "github.com/cnpg-i/scale-to-zero/sidecar/idle"

// verified handles the state of the Cluster after the answer to the hibernation patch was lost.
func (s *step) verified(e Completed) {
	if e.Outcome != Done {
		s.tryAgain()
		return
	}
	s.setView(e.View)
	if !s.applied() {
		s.do(RemoveMarker)
		s.report(Report{Result: ResultError, Action: s.sleepAction(), Doze: s.doze})
		s.wait(short)
	}
	s.removeAnnouncement()
}

// retracting handles the result of a step to remove the announcement.
func (s *step) retracting(e Completed) {
	switch {
	case e.Action == WithdrawReadiness: // which the driver repeats if it failed
		s.do(ReadCluster)
	case e.Outcome != Done:
		s.tryAgain()
	case e.Action == ReadCluster:
		s.setView(e.View)
		s.removeAnnouncement()
	default: // no fence was set, since that removes the announcement
		s.setView(e.View)
		s.restore()
		s.retracted()
	}
}

// applied reports whether the patch whose answer was lost has taken effect, in the state of the Cluster that was just
// read.
func (s *step) applied() bool {
	return s.view.HibernationOn && s.view.OwnsHibernation || s.view.Fenced && s.doze
}

// removeAnnouncement removes the announcement, if there is one, from the state of the Cluster that was just read.
func (s *step) removeAnnouncement() {
	switch v := s.view; {
	case s.applied():
		s.patchApplied()
	case !v.HibernationOn && v.Primary && (v.Announced != "" || s.restarted):
		s.enter(Retracting, RemoveAnnouncement)
	default:
		s.retracted()
	}
}

// retracted continues once the announcement is gone, so that no patch of the attempt can take effect any more.
func (s *step) retracted() {
	s.announcement, s.withdrawal = "", keep
	s.phase = Awake
	s.settle()
}

// tryAgain waits before the Cluster is read once more.
func (s *step) tryAgain() {
	s.waits = true
	s.tries = min(s.tries+1, maximumTries)
}

// recheck samples the instances again while hibernation can be withdrawn.
func (s *step) recheck() {
	switch {
	case s.phase == HibernationOn && s.withdrawal != keep:
		s.withdrawIfAsked()
	case s.phase == HibernationOn && s.pending == 0:
		s.do(Sample, AskSiblings)
	}
}

// rechecked handles the answer to whether somebody uses an instance although hibernation is on.
func (s *step) rechecked(e Completed) {
	if e.InUse {
		s.withdrawal = becauseOfUse
	}
	if s.pending != 0 {
		return
	}
	s.settle()
	s.withdrawIfAsked()
}

// withdrawIfAsked turns hibernation off if there is a reason to, and nothing is pending.
func (s *step) withdrawIfAsked() {
	if s.phase == HibernationOn && s.withdrawal != keep && s.pending == 0 {
		s.enter(Withdrawing, Withdraw)
	}
}

// withdrawn handles the result of the withdrawal. If it failed, the Cluster determines what to do, because the operator
// may have begun.
func (s *step) withdrawn(e Completed) {
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
	} else {
		s.tries = min(s.tries+1, maximumTries)
	}
	s.settle()
}
