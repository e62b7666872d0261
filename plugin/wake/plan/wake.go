package plan

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// Wake is a wake that no connection causes.
type Wake struct {
	Cause contract.Cause
	// By describes what asks for it.
	By string
	// Unused is how many wakes in a row, up to the last one, were for these objects or Backups and have left them pending.
	Unused int
}

const (
	// A cluster is woken before a window opens by twice the duration of its last wake, within these limits, or by
	// unknownLead if this replica has seen no wake.
	shortestLead, unknownLead, longestLead = 15 * time.Second, time.Minute, 5 * time.Minute
	// crossing is how long before the sleep a request may have come too late for the sidecar to see it, including clock
	// skew. Earlier requests have kept the cluster awake.
	crossing = 10 * time.Second
	// spread is over how long the wakes for windows that open, or Backups that are due, at the same time are spread.
	spread = idle.WakesWithin - longestLead
)

// lead is how long before a window opens its cluster is woken.
func lead(cluster types.UID, took time.Duration) time.Duration {
	return share(cluster, spread) + min(max(2*cmp.Or(took, unknownLead/2), shortestLead), longestLead)
}

// share spreads the clusters over a time.
func share(cluster types.UID, over time.Duration) time.Duration {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(cluster))
	return time.Duration(hash.Sum64() % uint64(over))
}

// wake decides whether a cluster that sleeps is to be woken although no client waits: because a request is newer than
// its last wake, because it has slept since before a keep-awake window opened or is about to, because a Backup is due,
// or because of objects. Who puts a cluster to sleep while its window is open has it sleep until the next one.
func (p *Plan) wake(state State, now time.Time) {
	cluster := state.Cluster
	if !cluster.HibernationOn && !cluster.Dozing {
		p.Memory.lastBackup = time.Time{}
		p.measure(state, now)
		p.makeBackup(state, now)
		return
	}
	p.Memory.completed = cmp.Or(state.Backups.Completed, p.Memory.completed)
	p.Memory.lastBackup, p.ListBackups = state.Backups.last(p.Memory.completed)
	last, _ := contract.ParseLastWake(state.Annotations[contract.AnnotationLastWake])
	since, _ := time.Parse(time.RFC3339, cmp.Or(
		state.Annotations[contract.AnnotationAsleepSince], state.Annotations[contract.AnnotationDozingSince])) // zero: since ever
	p.Memory.slept, p.Memory.asleepSince = true, cmp.Or(since, cluster.HibernatedAt)
	requested := cluster.Policy.WakeRequested
	if last.At.Before(requested) && requested.After(since.Add(-crossing)) &&
		now.Before(requested.Add(contract.MaxRequestAge)) &&
		cluster.ObstacleTo(contract.CauseRequest) == "" {
		p.Wake = &Wake{Cause: contract.CauseRequest, By: "request of " + requested.UTC().Format(time.RFC3339)}
		return
	}
	if cluster.ObstacleTo(contract.CauseWindow) == "" {
		p.wakeForWindow(state, since, now)
	}
	// ObstacleTo does not check the annotation for CauseBackup, because a Backup that waits wakes a dozing cluster
	// anyway; wakeForBackups does.
	if p.Wake == nil && cluster.ObstacleTo(contract.CauseBackup) == "" {
		p.wakeForBackups(state, last, since, now)
	}
	if p.Wake == nil && cluster.ObstacleTo(contract.CauseObject) == "" {
		p.wakeForPending(contract.CauseObject, state.Pending, last, since, now)
	}
}

func (p *Plan) wakeForWindow(state State, since, now time.Time) {
	for _, opening := range state.Cluster.Policy.Openings(now) {
		switch due := opening.Begin.Add(-lead(state.UID, p.Memory.took)); {
		case now.Before(due):
			p.at(due)
		case since.Before(opening.Begin):
			p.Wake = &Wake{Cause: contract.CauseWindow, By: fmt.Sprintf("keep-awake window of %s", opening.Begin.UTC().Format(time.RFC3339))}
			return
		}
	}
}

// measure notes how long the last wake from hibernation took, until a Service was ready, if this replica has seen both. A person's
// wake is not recorded, and so leaves the wake of before the sleep, which is not measured.
func (p *Plan) measure(state State, now time.Time) {
	wake, err := contract.ParseLastWake(state.Annotations[contract.AnnotationLastWake])
	if !p.Memory.slept || err != nil || wake.At.Before(p.Memory.asleepSince) || !slices.ContainsFunc(state.Services, func(s Service) bool { return s.Ready }) {
		return
	}
	if p.Memory.slept = false; wake.Depth != contract.DepthDoze {
		p.Memory.took = max(now.Sub(wake.At), time.Second)
	}
}
