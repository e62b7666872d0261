package control

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/pause"
)

// readiness is the pod's readiness, as the loop has withdrawn it.
type readiness struct {
	of      Readiness // nil if the pod was created without the sidecar's probe
	logger  *slog.Logger
	running sync.WaitGroup
	end     context.CancelFunc // ends the withdrawal; nil without one
}

// withdrawRetry is the wait before a failed attempt to withdraw the readiness is repeated.
const withdrawRetry = time.Second

// withdrawal returns what withdraws the readiness. It returns the result of the first try; after a failure it tries again until it
// succeeds or the readiness is restored.
func (r *readiness) withdrawal(ctx context.Context) func() error {
	withdrawing, end := context.WithCancel(ctx)
	r.end = end
	return func() error {
		err := r.of.Withdraw(withdrawing)
		if err != nil {
			r.running.Go(func() {
				for pause.For(withdrawing, withdrawRetry) && r.of.Withdraw(withdrawing) != nil {
				}
			})
		}
		return err
	}
}

// restore makes the pod ready again.
func (r *readiness) restore() {
	if r.end != nil {
		r.end()
		r.end = nil
	}
	if r.of == nil {
		return
	}
	if err := r.of.Restore(); err != nil {
		r.logger.Warn("the pod becomes ready a few seconds later", "error", err.Error())
	}
}
