package process

import (
	"context"
	"time"
)

// Pause waits for d, and reports false if the context ended first.
func Pause(ctx context.Context, d time.Duration) (ok bool) {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
