package control

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/monitor"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

const (
	// keepAwakeWriteInterval is the minimum time between two writes of a time for the channel, because an application may
	// send a request with every transaction, and each write triggers a reconciliation. The sidecar itself applies a
	// request at once.
	keepAwakeWriteInterval = time.Minute
	// firstKeepAwakeRetry and maxKeepAwakeRetry limit the backoff between tries to write it.
	firstKeepAwakeRetry, maxKeepAwakeRetry = 2 * time.Second, time.Minute
)

// keepAwakeRequest is a request over the channel that is not in the Cluster's annotation yet.
type keepAwakeRequest struct {
	pending bool
	instead string        // the annotation's value that it replaces
	tried   string        // the value that is being written, or was last; "": none
	lost    []string      // the values that may have been written, because their answers were lost
	extends bool          // that value is not ours, and in force
	until   time.Time     // zero: remove the annotation
	writing bool          // it is being written
	kept    bool          // it is not written, because the cluster is only observed
	next    time.Time     // when it may be written, unless it is urgent
	wait    time.Duration // before the next try, if the last one failed
}

// take records a request. A shorter request must not shorten another's, and a release removes only what the channel
// wrote: every role may send one.
func (k *keepAwakeRequest) take(request monitor.KeepAwakeRequest, policy idle.Policy, v kubernetes.View, now time.Time) {
	annotation, ok := v.Annotations[contract.AnnotationKeepAwakeUntil]
	foreign := ok && !v.KeepAwakeOurs
	if foreign && request.Until.IsZero() {
		k.pending = false
		return
	}
	until, err := time.Parse(time.RFC3339, annotation)
	k.instead, k.extends = annotation, foreign && err == nil && now.Before(until)
	k.pending, k.until = true, request.Until
	switch {
	case !request.Released:
		k.until = later(k.until, policy.KeepAwakeUntil)
	case foreign:
		k.until = later(k.until, until)
	}
}

// apply makes the request effective before it is written.
func (k *keepAwakeRequest) apply(policy *idle.Policy) {
	k.kept = policy.Observed
	if k.pending {
		policy.KeepAwakeUntil = k.until
	}
}

// persistKeepAwake writes the request to the Cluster's annotation, where it survives this pod and is visible to people.
func (k *cluster) persistKeepAwake(view kubernetes.View) task {
	r := &k.keepAwake
	if !r.pending || r.writing || view.CurrentPrimary != k.Pod {
		return nil
	}
	var value *string
	text := ""
	if !r.until.IsZero() {
		text = r.until.UTC().Format(time.RFC3339)
		value = &text
	}
	current := view.Annotations[contract.AnnotationKeepAwakeUntil]
	arrives := slices.ContainsFunc(r.lost, func(other string) bool { return other != text }) // perhaps, and would replace it
	switch {
	case current == text && !arrives, current != r.instead && !slices.Contains(r.lost, current): // or another client has changed it
		r.pending, r.lost = false, nil
		return nil
	case r.kept:
		r.pending = !r.until.IsZero() && time.Now().Before(r.until)
		return nil
	}
	if time.Now().Before(r.due(current)) {
		return nil
	}
	r.writing, r.tried = true, text
	extends := r.extends
	return k.annotate(contract.AnnotationKeepAwakeUntil, view, func(ctx context.Context) (kubernetes.View, error) {
		return k.Kubernetes.KeepAwake(ctx, view, value, extends)
	})
}

// due returns when the request may be written, given the annotation's value. A release, or a request that at least
// doubles what is left and adds an interval or more, does not wait, because a switchover or a drain would lose it.
func (k *keepAwakeRequest) due(current string) time.Time {
	until, err := time.Parse(time.RFC3339, current)
	left := time.Until(until)
	doubles := err == nil && left > 0 && k.until.Sub(until) >= max(left, keepAwakeWriteInterval)
	if k.wait == 0 && (k.until.IsZero() || doubles) {
		return k.next.Add(-keepAwakeWriteInterval)
	}
	return k.next
}

// wroteKeepAwake records whether it was written. Before the next write, the watch will have delivered the result.
func (k *cluster) wroteKeepAwake(e annotated) {
	r := &k.keepAwake
	r.writing = false
	if e.err == nil {
		k.Logger.Info("the request of the control channel is written", "annotation", e.key)
		r.instead, r.lost = e.view.Annotations[e.key], nil
		r.wait, r.next = 0, time.Now().Add(keepAwakeWriteInterval)
		return
	}
	if outcome(e.err) == sleep.Lost && !slices.Contains(r.lost, r.tried) {
		r.lost = append(r.lost, r.tried)
	}
	if !errors.Is(e.err, kubernetes.ErrConflict) {
		k.Logger.Warn("cannot write the request of the control channel", "error", e.err.Error())
	}
	r.wait = min(max(2*r.wait, firstKeepAwakeRetry), maxKeepAwakeRetry)
	r.next = time.Now().Add(r.wait)
}

// keepAwakeDue returns when the request is to be written; zero if nothing waits for that.
func (k *cluster) keepAwakeDue(view kubernetes.View) time.Time {
	if !k.keepAwake.pending || k.keepAwake.writing || k.keepAwake.kept || view.CurrentPrimary != k.Pod {
		return time.Time{}
	}
	return k.keepAwake.due(view.Annotations[contract.AnnotationKeepAwakeUntil])
}
