package sleep

import (
	"iter"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Timer is something to wait for.
type Timer uint8

// The timers.
const (
	// TimerAcknowledgement limits the wait for the gateway.
	TimerAcknowledgement Timer = iota
	// TimerExpiry expires shortly before the announcement, whose lifetime begins when Announce is requested. What has
	// not been done by then is not done any more.
	TimerExpiry
	// TimerOperator is how long the operator may take to begin before hibernation is withdrawn. Otherwise an operator
	// that comes back, or a cluster that becomes healthy again, would lead to the primary's deletion later, even if it
	// has clients.
	TimerOperator
	// TimerRecheck is the pause between samples while hibernation is on, and between attempts to withdraw it.
	TimerRecheck
	// TimerRetry is the pause between attempts, and between tries to undo one.
	TimerRetry
	// TimerResume is the pause between tries to resume the schedules.
	TimerResume
	// TimerHolding limits the wait for the gateway to hold every client.
	TimerHolding
	// TimerHeld is the wait after that for clients that other replicas of the gateway have just passed on. Those ask
	// the API server about every client while a doze is announced.
	TimerHeld
	// TimerManager is when the instance manager is asked whether it stops PostgreSQL.
	TimerManager
)

// Timers yields every timer.
func Timers() iter.Seq[Timer] {
	return func(yield func(Timer) bool) {
		for t := TimerAcknowledgement; t <= TimerManager && yield(t); t++ {
		}
	}
}

// String returns the timer's name.
func (t Timer) String() string {
	return [...]string{"Acknowledgement", "Expiry", "Operator", "Recheck", "Retry", "Resume", "Holding", "Held", "Manager"}[t]
}

const (
	acknowledgementTimeout = 20 * time.Second
	// expiryMargin is how long before the announcement's end TimerExpiry expires. At its end, the gateway begins to route
	// the Services back to the instance.
	expiryMargin = 2 * time.Second
	// holdingTimeout covers the kubelet's readiness probe and the gateway's wait for the nodes, and leaves the rest of the
	// announcement's lifetime for the last sample.
	holdingTimeout = 15 * time.Second
	heldDelay      = time.Second
	// managerTimeout is how long an instance manager that obeys a fence takes to say so, and to stop an idle
	// PostgreSQL.
	managerTimeout  = 10 * time.Second
	operatorTimeout = 15 * time.Second
	recheckInterval = time.Second
	firstRetry      = 2 * time.Second
	maxRetry        = 30 * time.Second
	maxResumeRetry  = time.Minute
	// resumeAgainDelay is longer than an announcement of a former primary lasts and the API server then handles a
	// request (its --request-timeout is a minute by default).
	resumeAgainDelay = 2 * time.Minute
	firstLongRetry   = 10 * time.Second
	// maxLongRetry limits the backoff after a refusal of the gateway or a sibling: each attempt writes to the API
	// server, and they may keep refusing.
	maxLongRetry = 5 * time.Minute
	// maxDozeRetry limits it for a doze: each attempt may cost a checkpoint and a WAL file.
	maxDozeRetry = time.Hour
)

// Timers returns the timers that run now, with their durations from the step that started them. A timer that is no
// longer returned is stopped.
func (m Machine) Timers() map[Timer]time.Duration {
	running := map[Timer]time.Duration{}
	switch {
	case m.resumeWaits && m.resume == resumeAgain:
		running[TimerResume] = resumeAgainDelay
	case m.resumeWaits:
		running[TimerResume] = doubled(firstRetry, maxResumeRetry, m.resumeTries)
	}
	if m.phase >= Announcing && m.phase <= Sampling && !m.expired {
		running[TimerExpiry] = contract.AnnouncementLifetime - expiryMargin
	}
	switch m.phase {
	case Awake, Resuming, Dozing: // in Resuming, so that the timer does not start again each time that Resume fails
		switch m.backoff {
		case short:
			running[TimerRetry] = doubled(firstRetry, maxRetry, m.tries)
		case long:
			longest := maxLongRetry
			if m.doze {
				longest = maxDozeRetry
			}
			running[TimerRetry] = doubled(firstLongRetry, longest, m.attempts)
		case none:
		}
	case AwaitingGateway:
		running[TimerAcknowledgement] = acknowledgementTimeout
	case LeavingServices:
		if m.view.Holding == m.announcement {
			running[TimerHeld] = heldDelay
		} else {
			running[TimerHolding] = holdingTimeout
		}
	case Stopping:
		if m.waits {
			running[TimerRetry] = doubled(firstRetry, maxRetry, m.tries)
		} else {
			running[TimerManager] = managerTimeout
		}
	case Verifying, Retracting, Unfencing:
		if m.waits {
			running[TimerRetry] = doubled(firstRetry, maxRetry, m.tries)
		}
	case HibernationOn:
		if m.withdrawal == keep {
			running[TimerOperator] = operatorTimeout
		}
		if m.pending == 0 {
			running[TimerRecheck] = doubled(recheckInterval, maxRetry, m.tries+1)
		}
	default: // the others only wait for an action
	}
	return running
}

// doubled returns the wait after the given number of failed tries, which doubles with each try up to last.
func doubled(first, last time.Duration, tries uint8) time.Duration {
	return min(first<<(max(tries, 1)-1), last)
}
