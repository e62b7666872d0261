package kubernetes

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Every error of the client is one of three, which tell the caller the outcome of its request: with [ErrConflict] and
// [RefusedError] nothing was done, with [ErrAnswerLost] the outcome is unknown.
var (
	// ErrConflict means that nothing was done because the object has changed since it was read.
	ErrConflict = errors.New("the object has changed meanwhile")
	// ErrAnswerLost means that no conclusive answer came: a timeout, a broken connection, an answer of a proxy or a
	// failure of the API server. The request may have been carried out, or may still be later. It is also used for a
	// request that was never sent, where that cannot be told apart.
	ErrAnswerLost = errors.New("the answer of the API server is lost")
)

// RefusedError means that nothing was done: the API server refused, or the request was found invalid before it was
// sent.
type RefusedError struct {
	// Code is the HTTP status, from 400 to 499; zero if nothing was sent.
	Code int
	err  error
}

// Error is the API server's message.
func (e *RefusedError) Error() string {
	if e.Code == 0 {
		return "refused before it was sent: " + e.err.Error()
	}
	return fmt.Sprintf("refused with status %d: %s", e.Code, e.err)
}

// Unwrap returns the error of client-go.
func (e *RefusedError) Unwrap() error { return e.err }

// classify turns an error of client-go into one of the three.
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
