package estimate

import (
	"slices"
	"time"
)

// state is what is known of a cluster at one time.
type state byte

// The states. The zero value is unknown, which is never idle.
const (
	unknown state = iota
	idle
	inUse
)

// History has the states of a cluster at regular times.
type History struct {
	step   time.Duration
	states []state
}

// Sleep is how a cluster would have slept at one threshold.
type Sleep struct {
	Asleep time.Duration
	// Wakes counts the sleeps that use ended; those that end in the unknown are not among them.
	Wakes int
}

// Length returns for how long the history lasts.
func (h History) Length() time.Duration { return h.step * time.Duration(max(len(h.states)-1, 0)) }

// Used reports whether the cluster was in use at any time.
func (h History) Used() bool { return slices.Contains(h.states, inUse) }

// Known returns for how long two successive samples have shown whether the cluster was in use.
func (h History) Known() time.Duration {
	known := time.Duration(0)
	for i := 1; i < len(h.states); i++ {
		if h.states[i-1] != unknown && h.states[i] != unknown {
			known += h.step
		}
	}
	return known
}

// Sleep returns how the cluster would have slept. As in the sidecar, the clock starts at the first idle sample and
// proves idleness only up to the last one: a client that came between two samples is assumed to have come at the
// earlier one.
func (h History) Sleep(threshold time.Duration) (sleep Sleep) {
	first := -1 // the sample at which the clock started
	for i, state := range h.states {
		if state == idle {
			if first < 0 {
				first = i
			}
			if h.step*time.Duration(i-first) > threshold {
				sleep.Asleep += min(h.step, h.step*time.Duration(i-first)-threshold)
			}
			continue
		}
		if state == inUse && first >= 0 && h.step*time.Duration(i-1-first) >= threshold {
			sleep.Wakes++
		}
		first = -1
	}
	return sleep
}
