package retry

import (
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
)

// Attempts is the backoff between a few attempts.
var Attempts = retry.DefaultRetry

// OnError calls f until it returns nil or an error that is not retriable, or the backoff ends, and returns what f has
// returned last. client-go's function of this name returns nil instead of the error of a context (client-go 0.36:
// util/retry/util.go), as if f had succeeded.
func OnError(backoff wait.Backoff, retriable func(error) bool, f func() error) (last error) {
	_ = retry.OnError(backoff, retriable, func() error {
		last = f()
		return last
	})
	return last
}
