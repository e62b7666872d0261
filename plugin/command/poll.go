package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/net"
)

const lookEvery = time.Second

var errTooLong = errors.New("timed out")

// poll calls look until it is done or the timeout has passed, which is [errTooLong], with the newest error that was not
// the timeout's. It retries after temporary errors of the API server; a refusal is final.
func poll(ctx context.Context, timeout time.Duration, look func(context.Context) (done bool, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTooLong)
	defer cancel()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	var newest error
	for {
		done, err := look(ctx)
		if done || err != nil && ctx.Err() == nil && !passing(err) {
			return err
		}
		if ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
			newest = err
		}
		select {
		case <-ctx.Done():
			if newest == nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("%w: %w", context.Cause(ctx), newest)
		case <-ticker.C:
		}
	}
}

// passing reports whether an error is temporary.
func passing(err error) bool {
	var answered apierrors.APIStatus
	if errors.As(err, &answered) {
		return apierrors.IsConflict(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
			apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
	}
	return net.IsTimeout(err) || net.IsConnectionRefused(err) || net.IsConnectionReset(err) ||
		net.IsProbableEOF(err) || net.IsHTTP2ConnectionLost(err)
}

// timeoutFlag adds --timeout, which must be positive.
func timeoutFlag(c *cobra.Command, timeout *time.Duration, describe string) {
	c.Flags().DurationVar(timeout, "timeout", *timeout, describe)
	c.PreRunE = func(*cobra.Command, []string) error {
		if *timeout <= 0 {
			return usage("--timeout is %s; it must be more than 0s", *timeout)
		}
		return nil
	}
}
