package wake

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/keyed"
)

const (
	// readyWithin bounds the wait before a replica is ready, after which it is in any case: a rollout of two replicas then
	// ends within the five minutes that Helm waits for it. Slices of 9,488 clusters take 37 s.
	readyWithin = 2 * time.Minute
	// readyEvery is how often it is asked whether the replica is ready.
	readyEvery = 250 * time.Millisecond
)

// AwaitReady returns when this replica may report that it is ready, once its informers are in sync. A rollout ends an
// old replica when a new one is ready. So as long as another replica has slices, this one waits until every cluster has
// passed: its Services' ports are open and its slices created, or attempts have failed too often, or there is no port.
// If no other replica serves, or this container was restarted in its pod, it is ready at once, because the operator
// waits for a plugin.
func (s *starting) AwaitReady(ctx context.Context) {
	defer s.firstPass.end()
	began, left := time.Now(), 0
	known, err := s.Informers.ClusterNames(ctx, "")
	if err == nil {
		err = wait.PollUntilContextTimeout(ctx, readyEvery, readyWithin, true, func(ctx context.Context) (bool, error) {
			var err error
			left, err = s.awaited(ctx, known)
			return left == 0, err
		})
	}
	switch {
	case err == nil:
		s.Logger.Info("the replica is ready", "clusters", len(known), "waited", time.Since(began).String())
	case ctx.Err() != nil:
	case wait.Interrupted(err):
		s.Logger.Warn("the replica reports that it is ready before the Services of every cluster lead here",
			"clusters", len(known), "outstanding", left)
	default:
		s.Logger.Warn("cannot tell whether every cluster's Services lead here", "error", err.Error())
	}
}

// awaited is how many of the clusters have to pass before this replica is ready.
func (s *starting) awaited(ctx context.Context, known []types.NamespacedName) (int, error) {
	left := s.firstPass.outstanding(known)
	if left == 0 {
		return 0, nil
	}
	replicas, err := s.readReplicas(ctx)
	if err != nil {
		return 0, err
	}
	own, ok := replicas[s.Settings.Replica.UID]
	if !ok || !neverReady(own) {
		return 0, nil
	}
	for uid, pod := range replicas {
		if uid == own.UID || !podReady(pod) || pod.DeletionTimestamp != nil {
			continue
		}
		leads, err := s.Informers.Leads(ctx, uid)
		if err != nil {
			return 0, fmt.Errorf("ask whether another replica leads clients: %w", err)
		}
		if leads {
			return left, nil
		}
	}
	return 0, nil
}

// leads reports whether this replica routes clients to itself: while its pod is ready, and before it is ready for the
// first time, because that waits for the slices.
func (s *starting) leads(replicas replicas) bool {
	own, ok := replicas[s.Settings.Replica.UID]
	return ok && (podReady(own) || neverReady(own) && !s.firstPass.over.Load())
}

// firstTries is how many reconciliations of a cluster may fail before a replica that starts continues without it: one
// bad cluster must not stop a rollout. With the waits between them, see [firstRetry], they take ten seconds.
const firstTries = 12

// starting says whether a replica that starts is ready.
type starting struct {
	*Access
	firstPass firstPass
}

// passed notes the result of a cluster's reconciliation, until the replica is ready.
func (s *starting) passed(cluster types.NamespacedName, err error) {
	if s.firstPass.note(cluster, err) {
		s.Logger.Warn("the replica becomes ready without leading a cluster's clients; it continues to try", "namespace", cluster.Namespace, "cluster", cluster.Name, "error", err.Error())
	}
}

// firstPass are the first reconciliations after the start: once each cluster has had its own, what leads clients to
// this replica stands.
type firstPass struct {
	over atomic.Bool
	// spent is how many tries a cluster has used: firstTries once it has passed, or is waited for no longer.
	spent keyed.Map[types.NamespacedName, int]
}

// note remembers how a reconciliation of a cluster ended. It reports whether that was the last failure that is waited
// for.
func (p *firstPass) note(cluster types.NamespacedName, err error) (givenUp bool) {
	p.spent.Change(cluster, func(tries *int) bool {
		switch {
		case p.over.Load():
			return false
		case err == nil:
			*tries = firstTries
		case *tries < firstTries:
			*tries++
			givenUp = *tries == firstTries
		}
		return true
	})
	return givenUp
}

// outstanding is how many of the clusters have not passed yet.
func (p *firstPass) outstanding(of []types.NamespacedName) (count int) {
	for _, cluster := range of {
		if p.spent.Get(cluster) < firstTries && !p.over.Load() {
			count++
		}
	}
	return count
}

func (p *firstPass) end() {
	p.over.Store(true)
	p.spent.DeleteFunc(func(types.NamespacedName, int) bool { return true })
}
