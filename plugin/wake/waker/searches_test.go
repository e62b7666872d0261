package waker

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// A search continues while any client waits: for days, if the operator is down and an application keeps retrying. It must not
// grow with every retry.
func TestResolve_keepsNothingOfClientsThatHaveLeft(t *testing.T) { // it measures the heap
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, awake)
		patient := make(chan error, 1)
		go func() {
			_, err := w.waker.Resolve(t.Context(), service("-rw"), by)
			patient <- err
		}()
		synctest.Wait()
		left, leave := context.WithCancel(t.Context())
		leave()
		visit := func(clients int) {
			for range clients {
				if _, err := w.waker.Resolve(left, service("-rw"), by); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
			}
		}
		visit(100)
		before := heap()
		visit(20_000)
		if grown := heap() - before; grown > 1<<20 {
			t.Errorf("%d KiB are kept of 20,000 clients", grown>>10)
		}
		<-patient
	})
}

func heap() int64 {
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return int64(memory.HeapAlloc)
}
