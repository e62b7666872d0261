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
	// TimerAcknowledgement bounds the wait for the gateway.
	TimerAcknowledgement Timer = iota
	// TimerExpiry runs out before the announcement does, whose time begins when Announce is asked for: what has not been done
	// by then is not done any more.
	TimerExpiry
	// TimerOperator is how long the operator may take to begin before the switch is withdrawn: it would otherwise delete the
	// primary whenever it is back, or the cluster is healthy again, clients or not.
	TimerOperator
	// TimerRecheck spaces the samples once the switch is on, and the tries to withdraw it.
	TimerRecheck
	// TimerRetry spaces attempts, and the tries to undo one.
	TimerRetry
	// TimerResume spaces the tries to resume the schedules.
	TimerResume
)

// Timers yields every timer.
func Timers() iter.Seq[Timer] {
	return func(yield func(Timer) bool) {
		for t := TimerAcknowledgement; t <= TimerResume && yield(t); t++ {
		}
	}
}

// String names the timer.
func (t Timer) String() string {
	return [...]string{"Acknowledgement", "Expiry", "Operator", "Recheck", "Retry", "Resume"}[t]
}

const (
	acknowledgementTakes = 20 * time.Second
	// actBefore is what remains of an announcement's time at the expiry timer's end; the gateway leaves when it has passed.
	actBefore     = 2 * time.Second
	operatorTakes = 15 * time.Second
	recheckEvery  = time.Second
	firstRetry    = 2 * time.Second
	lastRetry     = 30 * time.Second
	lastResume    = time.Minute
	// resumeAgainAfter is longer than the API server handles a request (its --request-timeout is a minute by default).
	resumeAgainAfter = 2 * time.Minute
	firstLongRetry   = 10 * time.Second
	// lastLongRetry bounds the wait where the gateway or a sibling said no: each attempt writes, and they may go on to say no.
	lastLongRetry = 5 * time.Minute
)

// Timers are the timers that run now, and how long each takes from the step on that made it run. A timer that no longer
// runs is stopped.
func (m Machine) Timers() map[Timer]time.Duration {
	running := map[Timer]time.Duration{}
	switch {
	case m.resumeWaits && m.resume == resumeAgain:
		running[TimerResume] = resumeAgainAfter
	case m.resumeWaits:
		running[TimerResume] = doubled(firstRetry, lastResume, m.resumeTries)
	}
	if m.phase >= Announcing && m.phase <= Sampling && !m.expired {
		running[TimerExpiry] = contract.AnnouncementLifetime - actBefore
	}
	switch m.phase {
	case Awake:
		switch m.backoff {
		case short:
			running[TimerRetry] = doubled(firstRetry, lastRetry, m.tries)
		case long:
			running[TimerRetry] = doubled(firstLongRetry, lastLongRetry, m.tries)
		case none:
		}
	case AwaitingGateway:
		running[TimerAcknowledgement] = acknowledgementTakes
	case Verifying, Retracting:
		if m.waits {
			running[TimerRetry] = doubled(firstRetry, lastRetry, m.tries)
		}
	case SwitchedOn:
		if m.withdrawal == keep {
			running[TimerOperator] = operatorTakes
		}
		if m.pending == 0 {
			running[TimerRecheck] = doubled(recheckEvery, lastRetry, m.tries+1)
		}
	default: // the others wait for an action only
	}
	return running
}

// doubled is the wait after so many tries that came to nothing, each twice as long as the one before.
func doubled(first, last time.Duration, tries uint8) time.Duration {
	return min(first<<(max(tries, 1)-1), last)
}
