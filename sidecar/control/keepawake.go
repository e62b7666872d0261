package control

import (
	"context"
	"errors"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/monitor"
)

const (
	// keepAwakeWriteInterval is the minimum time between two writes of a time for the channel, because an application may ask with
	// every transaction, and each write is a reconciliation. Until then the sidecar knows it all the same.
	keepAwakeWriteInterval = time.Minute
	// firstKeepAwakeRetry and maxKeepAwakeRetry limit the backoff between tries to write it.
	firstKeepAwakeRetry, maxKeepAwakeRetry = 2 * time.Second, time.Minute
)

// keepAwakeRequest is a request over the channel that is not in the Cluster's annotation yet.
type keepAwakeRequest struct {
	pending bool
	instead string        // the annotation's value that it replaces
	extends bool          // that value is not ours, and in force
	until   time.Time     // zero: remove the annotation
	writing bool          // it is being written
	next    time.Time     // when it may be written
	wait    time.Duration // before the next try, if the last one failed
}

// take records a request. A shorter request must not shorten another's, and a release removes only what the channel wrote:
// every role may send one.
func (k *keepAwakeRequest) take(request monitor.KeepAwakeRequest, policy idle.Policy, v kubernetes.View, now time.Time) {
	annotation, ok := v.Annotations[contract.AnnotationKeepAwakeUntil]
	foreign := ok && !v.KeepAwakeOurs
	if foreign && request.Until.IsZero() {
		k.pending = false
		return
	}
	until, err := time.Parse(time.RFC3339, annotation)
	k.instead, k.extends = annotation, foreign && err == nil && now.Before(until)
	k.pending, k.until, k.wait = true, request.Until, 0
	if !request.Until.IsZero() {
		k.until = later(k.until, policy.KeepAwakeUntil)
	}
}

// apply makes the request effective before it is written.
func (k *keepAwakeRequest) apply(policy *idle.Policy) {
	if k.pending {
		policy.KeepAwakeUntil = k.until
	}
}

// settle records whether it was written. Before the next write, the watch will have delivered the result.
func (k *keepAwakeRequest) settle(err error) {
	k.writing = false
	if err == nil {
		k.wait, k.next = 0, time.Now().Add(keepAwakeWriteInterval)
		return
	}
	k.wait = min(max(2*k.wait, firstKeepAwakeRetry), maxKeepAwakeRetry)
	k.next = time.Now().Add(k.wait)
}

// persistKeepAwake writes the request to the Cluster's annotation, where it survives this pod and is visible to people.
func (l *Loop) persistKeepAwake(ctx context.Context) {
	k, view := &l.keepAwake, l.status.View
	if !k.pending || k.writing || view.CurrentPrimary != l.parts.Pod {
		return
	}
	var value *string
	if !k.until.IsZero() {
		text := k.until.UTC().Format(time.RFC3339)
		value = &text
	}
	current, ok := view.Annotations[contract.AnnotationKeepAwakeUntil]
	switch {
	case !ok && value == nil, ok && value != nil && current == *value, current != k.instead: // or another client has changed it
		k.pending = false
		return
	}
	if time.Now().Before(k.next) && (k.wait != 0 || value != nil) {
		return
	}
	k.writing = true
	extends := k.extends
	l.begin(ctx, func(ctx context.Context) func() {
		v, err := l.parts.Kubernetes.KeepAwake(ctx, view, value, extends)
		return func() { l.wroteKeepAwake(ctx, v, err) }
	})
}

func (l *Loop) wroteKeepAwake(ctx context.Context, v kubernetes.View, err error) {
	l.keepAwake.settle(err)
	switch {
	case err == nil:
		l.parts.Logger.Info("the request of the control channel is written", "annotation", contract.AnnotationKeepAwakeUntil)
		l.keepAwake.instead = v.Annotations[contract.AnnotationKeepAwakeUntil]
		l.adopt(ctx, v)
	case !errors.Is(err, kubernetes.ErrConflict):
		l.parts.Logger.Warn("cannot write the request of the control channel", "error", err.Error())
	}
	l.schedule()
}
