// Package estimate computes how long a cluster would have slept, and how often it would have been woken, from what is
// known of its past. It is pure.
package estimate

import (
	"slices"
	"time"
)

// State is what is known of a cluster at one time.
type State byte

// The states. The zero value is unknown, which is never idle.
const (
	Unknown State = iota
	Idle
	InUse
)

// History has the states of a cluster at regular times.
type History struct {
	Step   time.Duration
	States []State
}

// Sleep is how a cluster would have slept at one threshold.
type Sleep struct {
	Threshold, Asleep time.Duration
	// Wakes counts the sleeps that use ended; those that end in the unknown are not among them.
	Wakes int
}

// Length returns for how long the history lasts.
func (h History) Length() time.Duration { return h.Step * time.Duration(max(len(h.States)-1, 0)) }

// Used reports whether the cluster was in use at any time.
func (h History) Used() bool { return slices.Contains(h.States, InUse) }

// Known returns for how long two successive samples have shown whether the cluster was in use.
func (h History) Known() time.Duration {
	known := time.Duration(0)
	for i := 1; i < len(h.States); i++ {
		if h.States[i-1] != Unknown && h.States[i] != Unknown {
			known += h.Step
		}
	}
	return known
}

// Sleep returns how the cluster would have slept. As in the sidecar, the clock starts at the first idle sample and
// proves idleness only up to the last one: a client that came between two samples is assumed to have come at the
// earlier one.
func (h History) Sleep(threshold time.Duration) Sleep {
	sleep := Sleep{Threshold: threshold}
	first := -1 // the sample at which the clock started
	for i, state := range h.States {
		if state == Idle {
			if first < 0 {
				first = i
			}
			if h.Step*time.Duration(i-first) > threshold {
				sleep.Asleep += min(h.Step, h.Step*time.Duration(i-first)-threshold)
			}
			continue
		}
		if state == InUse && first >= 0 && h.Step*time.Duration(i-1-first) >= threshold {
			sleep.Wakes++
		}
		first = -1
	}
	return sleep
}
