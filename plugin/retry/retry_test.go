package retry

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
)

func TestOnError_returnsTheLastError(t *testing.T) {
	t.Parallel()
	errRetriable, errFinal := errors.New("another client came between"), errors.New("refused")
	retriable := func(err error) bool { return errors.Is(err, errRetriable) }
	for _, row := range []struct {
		rule    string
		answers []error
		want    error
	}{
		{"success", []error{nil}, nil},
		{"success after an error that is retriable", []error{errRetriable, nil}, nil},
		{"an error that is not retriable", []error{errRetriable, errFinal}, errFinal},
		{"the end of the context", []error{fmt.Errorf("read: %w", context.Canceled)}, context.Canceled},
		{"the deadline of the context after another error", []error{errRetriable, context.DeadlineExceeded}, context.DeadlineExceeded},
		{"the last one when the attempts are used up", []error{errRetriable, errRetriable, errRetriable, errRetriable, errRetriable}, errRetriable},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				got := OnError(Attempts, retriable, func() error { calls++; return row.answers[calls-1] })
				if !errors.Is(got, row.want) || calls != len(row.answers) {
					t.Errorf("it returns %v after %d calls, want %v after %d", got, calls, row.want, len(row.answers))
				}
			})
		})
	}
}
