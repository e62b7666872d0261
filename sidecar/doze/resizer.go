package doze

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
)

const (
	// firstRetry and maxRetry are the shortest and the longest wait before a failed resize is tried again. A quota may
	// forbid it for days.
	firstRetry, maxRetry = 250 * time.Millisecond, time.Minute
	// lostAnswerTimeout is how long a resize whose answer was lost may still take effect: longer than the API server
	// handles a request (its --request-timeout is a minute by default).
	lostAnswerTimeout = 2 * time.Minute
	// kubeletTimeout is how long the kubelet may take to set the condition PodResizePending after the requests were
	// raised.
	kubeletTimeout = 10 * time.Second
)

// podClient is this pod at the API server.
type podClient interface {
	Pod(ctx context.Context) (*kubernetes.Pod, error)
	Resize(ctx context.Context, pod *kubernetes.Pod, container string, requests map[string]resource.Quantity) error
}

// Resizer sets this pod's requests to the wanted size. It is best effort: nothing waits for it.
type Resizer struct {
	pods          podClient
	podUID        string
	memory        resource.Quantity
	logger        *slog.Logger
	wanted        chan bool
	refused       chan error
	growthPending atomic.Bool

	small            bool
	logged           bool // a failure to set this size was logged
	refusalDelivered bool // a refusal of this growth was delivered
	// uncertain is until when a resize whose answer was lost may take effect, and the kubelet may set PodResizePending.
	uncertain time.Time
}

// NewResizer returns a resizer for the pod of that UID. memory is the memory request during a doze; zero leaves it as
// it is.
func NewResizer(pods podClient, podUID string, memory resource.Quantity, logger *slog.Logger) *Resizer {
	return &Resizer{pods: pods, podUID: podUID, memory: memory, logger: logger, wanted: make(chan bool, 1), refused: make(chan error, 1)}
}

// Want says whether the requests are to be small. Only one goroutine may call it.
func (r *Resizer) Want(small bool) {
	select {
	case <-r.wanted:
	default:
	}
	r.wanted <- small
}

// Refused delivers the first refusal by the API server of each growth. The growth is tried again.
func (r *Resizer) Refused() <-chan error { return r.refused }

// GrowthPending reports whether the pod, when last read, had not got its original requests back after a doze: because
// they were refused, or because its node has no room for them.
func (r *Resizer) GrowthPending() bool { return r.growthPending.Load() }

// Run sets the wanted size until the context ends.
func (r *Resizer) Run(ctx context.Context) {
	retry, wait := time.NewTimer(maxRetry), firstRetry
	defer retry.Stop()
	retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case small := <-r.wanted:
			r.small, r.logged, r.refusalDelivered = small, false, false
			wait = firstRetry
		case <-retry.C:
		}
		if r.attempt(ctx) {
			retry.Reset(wait)
			wait = min(2*wait, maxRetry)
		} else {
			retry.Stop()
		}
	}
}

// attempt resizes the pod once, and reports whether that is to be tried again.
func (r *Resizer) attempt(ctx context.Context) (again bool) {
	pod, err := r.pods.Pod(ctx)
	if err != nil {
		return r.failed(ctx, err)
	}
	if string(pod.UID) != r.podUID {
		return false
	}
	to := r.decide(pod)
	pending := !r.small && isResizePending(pod)
	if len(to) == 0 {
		r.growthPending.Store(pending)
		return pending || time.Now().Before(r.uncertain)
	}
	err = r.pods.Resize(ctx, pod, contract.PostgresContainer, to)
	// After a success the pod is read again, to see whether the node grants the requests.
	r.growthPending.Store(pending || !r.small && err != nil)
	if err == nil {
		r.logger.Info("the requests of PostgreSQL's container are changed", "small", r.small, "requests", loggable(to))
		if !r.small {
			r.uncertain = time.Now().Add(kubeletTimeout)
		}
		return !r.small
	}
	if errors.Is(err, kubernetes.ErrAnswerLost) {
		r.uncertain = time.Now().Add(lostAnswerTimeout)
	}
	var refusal *kubernetes.RefusedError
	if !r.small && !r.refusalDelivered && errors.As(err, &refusal) {
		r.refusalDelivered = true
		select {
		case r.refused <- err:
		default: // one is not yet read
		}
	}
	return r.failed(ctx, err)
}

func (r *Resizer) decide(pod *kubernetes.Pod) Requests {
	if !r.small {
		return Grow(pod)
	}
	to, against := Shrink(pod, r.memory)
	if against != "" {
		r.logger.Info("the requests of PostgreSQL's container stay as they are", "why", against)
	}
	return to
}

// failed logs the first failure to set a size, and reports whether to try again: a growth always, a shrink unless
// Kubernetes refused it.
func (r *Resizer) failed(ctx context.Context, err error) (again bool) {
	if !r.logged && !errors.Is(err, kubernetes.ErrConflict) && ctx.Err() == nil {
		r.logged = true
		r.logger.Warn("cannot change the requests of PostgreSQL's container", "small", r.small, "error", err.Error())
	}
	var refusal *kubernetes.RefusedError
	return !r.small || !errors.As(err, &refusal)
}

// loggable converts requests for the log.
func loggable(requests Requests) map[string]string {
	text := map[string]string{}
	for name, quantity := range requests {
		text[name] = quantity.String()
	}
	return text
}
