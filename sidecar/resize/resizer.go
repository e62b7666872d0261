package resize

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes/api"
)

const (
	// firstRetry and longestRetry are the shortest and the longest wait before a failed resize is tried again. A quota that forbids
	// it may do so for days.
	firstRetry, longestRetry = 250 * time.Millisecond, time.Minute
	// lostLasts is how long a resize whose answer is lost may still be carried out.
	lostLasts = 10 * time.Second
	// answersWithin is how long the kubelet is given to say that a growth has to wait.
	answersWithin = 10 * time.Second
)

// Pods is this pod at the API server.
type Pods interface {
	Pod(ctx context.Context) (*api.Pod, error)
	Resize(ctx context.Context, pod *api.Pod, container string, requests map[string]resource.Quantity) error
}

// Resizer keeps this pod's requests at the size that is wanted. It is best effort: nothing waits for it.
type Resizer struct {
	pods    Pods
	podUID  string
	memory  resource.Quantity
	logger  *slog.Logger
	wants   chan bool
	refused chan error
	lacking atomic.Bool

	small     bool
	logged    bool      // a failure to get this size
	told      bool      // that it was refused
	uncertain time.Time // until then a resize whose answer was lost may be carried out, and the kubelet may say that a growth has to wait
}

// New returns a resizer for the pod of that UID. memory is the memory request during a doze; zero leaves it as it is.
func New(pods Pods, podUID string, memory resource.Quantity, logger *slog.Logger) *Resizer {
	return &Resizer{pods: pods, podUID: podUID, memory: memory, logger: logger, wants: make(chan bool, 1), refused: make(chan error, 1)}
}

// Want says whether the requests are to be small. Only one goroutine may call it.
func (r *Resizer) Want(small bool) {
	select {
	case <-r.wants:
	default:
	}
	r.wants <- small
}

// Refused delivers the first refusal of each growth, which is tried again.
func (r *Resizer) Refused() <-chan error { return r.refused }

// Lacking reports whether the pod, when last read, lacked requests that it is to have again after a doze: because they were refused,
// or because its node has no room for them.
func (r *Resizer) Lacking() bool { return r.lacking.Load() }

// Run resizes the pod as wanted, until the context ends.
func (r *Resizer) Run(ctx context.Context) {
	retry, wait := time.NewTimer(longestRetry), firstRetry
	defer retry.Stop()
	retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case small := <-r.wants:
			r.small, r.logged, r.told = small, false, false
			wait = firstRetry
		case <-retry.C:
		}
		if r.attempt(ctx) {
			retry.Reset(wait)
			wait = min(2*wait, longestRetry)
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
	lacking := !r.small && Awaits(pod)
	if len(to) == 0 {
		r.lacking.Store(lacking)
		return lacking || time.Now().Before(r.uncertain)
	}
	err = r.pods.Resize(ctx, pod, contract.PostgresContainer, to)
	r.lacking.Store(lacking || !r.small && err != nil) // the pod is read again whether the node grants what the API server has taken
	if err == nil {
		r.logger.Info("the requests of PostgreSQL's container are changed", "small", r.small, "requests", words(to))
		if !r.small {
			r.uncertain = time.Now().Add(answersWithin)
		}
		return !r.small
	}
	if errors.Is(err, kubernetes.ErrAnswerLost) {
		r.uncertain = time.Now().Add(lostLasts)
	}
	var refusal *kubernetes.RefusedError
	if !r.small && !r.told && errors.As(err, &refusal) {
		r.told = true
		select {
		case r.refused <- err:
		default: // one is not yet read
		}
	}
	return r.failed(ctx, err)
}

func (r *Resizer) decide(pod *api.Pod) Requests {
	if !r.small {
		return Grow(pod)
	}
	to, against := Shrink(pod, r.memory)
	if against != "" {
		r.logger.Info("the requests of PostgreSQL's container stay as they are", "why", against)
	}
	return to
}

// failed logs the first failure to get a size, and reports whether it is to be tried again. What was shrunk has to grow, but what
// Kubernetes refuses to shrink can stay as it is.
func (r *Resizer) failed(ctx context.Context, err error) (again bool) {
	if !r.logged && !errors.Is(err, kubernetes.ErrConflict) && ctx.Err() == nil {
		r.logged = true
		r.logger.Warn("the requests of PostgreSQL's container could not be changed", "small", r.small, "error", err.Error())
	}
	var refusal *kubernetes.RefusedError
	return !r.small || !errors.As(err, &refusal)
}

// words are requests for the log.
func words(requests Requests) map[string]string {
	text := map[string]string{}
	for name, quantity := range requests {
		text[name] = quantity.String()
	}
	return text
}
