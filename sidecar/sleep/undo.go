package sleep

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

// withdrawIfAsked turns hibernation off if there is a reason to, and nothing is pending.
func (s *step) withdrawIfAsked() {
	if s.phase == HibernationOn && s.withdrawal != keep && s.pending == 0 {
		s.enter(Withdrawing, Withdraw)
	}
}
