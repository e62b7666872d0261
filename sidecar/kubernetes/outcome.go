package kubernetes

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Every error of the client is one of three, by which a caller knows what has become of its request: [ErrConflict] and
// [RefusedError] say that nothing was done, [ErrAnswerLost] that nobody knows.
var (
	// ErrConflict says that nothing was done because the object has changed since it was read.
	ErrConflict = errors.New("the object has changed meanwhile")
	// ErrAnswerLost says that no answer came that counts: a timeout, a connection that broke, an answer of a proxy or a failure
	// of the API server. What was asked for may be done, and it may still be done later. A request that was never sent is taken
	// for one whose answer is lost, too, where the two cannot be told apart.
	ErrAnswerLost = errors.New("the answer of the API server is lost")
)

// RefusedError says that nothing was done: the API server refused, or the request was found wrong before it was sent.
type RefusedError struct {
	// Code is the HTTP status, from 400 to 499; zero if nothing was sent.
	Code int
	err  error
}

// Error is the API server's message.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("refused with status %d: %s", e.Code, e.err)
}

// Unwrap gives the error of client-go.
func (e *RefusedError) Unwrap() error { return e.err }

// classify gives an error of client-go its class.
func classify(err error) error {
	if err == nil {
		return nil
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return fmt.Errorf("%w: %w", ErrAnswerLost, err)
	}
	switch code := int(status.Status().Code); {
	case code == http.StatusConflict:
		return fmt.Errorf("%w: %w", ErrConflict, err)
	case code == http.StatusRequestTimeout, code < 400, code > 499:
		return fmt.Errorf("%w: %w", ErrAnswerLost, err)
	default:
		return &RefusedError{Code: code, err: err}
	}
}
