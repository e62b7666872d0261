// Package pause waits between two tries.
package pause

import (
	"context"
	"time"
)

// For waits for d, and reports false if the context ended first.
func For(ctx context.Context, d time.Duration) (ok bool) {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
