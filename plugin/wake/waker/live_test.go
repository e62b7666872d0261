package waker

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
)

// moved is an API server in whose view the instance's address has become another cluster's, or that does not answer.
type moved struct {
	client.Reader
	away bool
}

func (m moved) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if m.away {
		return errors.New("away")
	}
	return m.Reader.Get(ctx, key, o, options...)
}

func (m moved) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// The address of an instance that is gone may be another tenant's: the port of the gateway belongs to one Service, and the address must be as
// sure.
func TestResolve_onAViewThatMayBeStale(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		stale  bool
		api    func(client.Reader) client.Reader
		passed bool
	}{
		{"the informers suffice while the API server has answered", false, func(r client.Reader) client.Reader { return moved{r, true} }, true},
		{"an instance that the API server knows is served", true, func(r client.Reader) client.Reader { return r }, true},
		{"one that it does not know is not", true, func(r client.Reader) client.Reader { return moved{r, false} }, false},
		{"nobody is passed on while it does not answer", true, func(r client.Reader) client.Reader { return moved{r, true} }, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, time.Minute, awake)
				w.runs()
				w.waker.APIReader = row.api(w.api)
				w.stale.Store(row.stale)
				got, err := w.waker.Resolve(t.Context(), service("-rw"), by)
				if row.passed && (err != nil || got != primary) || !row.passed && (!errors.Is(err, gateway.ErrTimeout) || got != netip.AddrPort{}) {
					t.Errorf("got %s, %v", got, err)
				}
				if running := w.waker.Running(t.Context(), service("-rw")); row.passed != (len(running) != 0) {
					t.Errorf("%v are said to run", running)
				}
			})
		})
	}
}

// failing is an API server that does not answer one request.
type failing struct {
	client.Reader
	left *atomic.Int64 // requests until that one
}

func (f failing) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if f.left.Add(-1) == 0 {
		return errors.New("no answer")
	}
	return f.Reader.Get(ctx, key, o, options...)
}

func TestResolve_refusesNobodyForOneAnswerThatIsLost(t *testing.T) {
	t.Parallel()
	for request := range int64(4) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, time.Minute, awake)
			w.runs()
			left := new(atomic.Int64)
			left.Store(request + 1)
			w.waker.APIReader = failing{w.api, left}
			w.stale.Store(true)
			got, err := w.waker.Resolve(t.Context(), service("-rw"), by)
			if err != nil || got != primary {
				t.Errorf("without an answer to request %d: %s, %v", request+1, got, err)
			}
		})
	}
}
