package command

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// asking is the error of a request that got no answer.
func asking(err error) error {
	return fmt.Errorf("read Cluster orders: %w", &url.Error{Op: "Get", URL: "https://api.example.org", Err: err})
}

var errRefused = asking(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})

func TestPassing_isWhatEndsByItself(t *testing.T) {
	t.Parallel()
	for rule, row := range map[string]struct {
		err  error
		want bool
	}{
		"an API server that starts refuses connections":   {errRefused, true},
		"one that is stopped resets them":                 {asking(&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}), true},
		"or closes them":                                  {asking(io.EOF), true},
		"one that is slow does not answer in time":        {asking(context.DeadlineExceeded), true},
		"a name that does not exist stays so":             {asking(&net.DNSError{Err: "no such host", Name: "api.example.org", IsNotFound: true}), false},
		"a certificate of an unknown authority does, too": {asking(x509.UnknownAuthorityError{}), false},
		"and a program for credentials that fails":        {asking(errors.New("getting credentials: exec: executable aws failed with exit code 255")), false},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			if got := passing(row.err); got != row.want {
				t.Errorf("got %t, want %t: %v", got, row.want, row.err)
			}
		})
	}
}

func TestWake_saysAtOnceThatItReachesNoAPIServer(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		w := newWorld(t, cluster("orders"))
		w.lost, w.lostBy = 1000, errRefused
		began := time.Now()
		got := w.run(t.Context(), "wake", "orders")
		if !strings.Contains(got, "connection refused") || !strings.HasSuffix(got, fmt.Sprintf("= %d\n", exitFailed)) {
			t.Errorf("got\n%s", got)
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("it has waited for %s", waited)
		}
	})
}

// The timeout ends the last look; what the one before failed with is the cause.
func TestWake_keepsTheCauseWhenTheTimeIsUp(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		orders := cluster("orders")
		orders.Annotations[contract.AnnotationHibernation] = "on"
		w := newWorld(t, orders)
		looks := 0
		w.looked = func(w *world, _ *cnpgv1.Cluster) {
			w.mutex.Lock()
			defer w.mutex.Unlock()
			if looks++; looks == 1 {
				w.lost, w.lostBy = 1000, errRefused
			}
		}
		got := w.run(t.Context(), "wake", "orders", "--wait", "--timeout", "6s")
		if !strings.Contains(got, "connection refused") || strings.Contains(got, "is ,") {
			t.Errorf("got\n%s", got)
		}
	})
}
