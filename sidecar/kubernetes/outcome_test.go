package kubernetes

import (
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
)

func TestClient_errorsTellWhatBecameOfARequest(t *testing.T) {
	t.Parallel()
	refuses := func(code int, reason string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Retry-After", "1")
			status(w, code, reason, "because")
		}
	}
	const refused = "refused"
	for _, row := range []struct {
		rule    string
		handler http.HandlerFunc
		want    any // an error to compare with, or refused with its code
		code    int
	}{
		{"an object that has changed is a conflict", refuses(http.StatusConflict, "Conflict"), ErrConflict, 0},
		{"what is not permitted is refused", refuses(http.StatusForbidden, "Forbidden"), refused, http.StatusForbidden},
		{"what is not there is refused", refuses(http.StatusNotFound, "NotFound"), refused, http.StatusNotFound},
		{"what is invalid is refused", refuses(http.StatusUnprocessableEntity, "Invalid"), refused, http.StatusUnprocessableEntity},
		{"one of too many is refused", refuses(http.StatusTooManyRequests, "TooManyRequests"), refused, http.StatusTooManyRequests},
		{"a failure within the API server may come after the commit", refuses(http.StatusInternalServerError, "InternalError"), ErrAnswerLost, 0},
		{"an API server that gave up may have committed", refuses(http.StatusGatewayTimeout, "Timeout"), ErrAnswerLost, 0},
		{"an etcd that does not answer may have committed", refuses(http.StatusServiceUnavailable, "ServiceUnavailable"), ErrAnswerLost, 0},
		{"a proxy that waited for the request's end knows nothing", refuses(http.StatusRequestTimeout, ""), ErrAnswerLost, 0},
		{"a proxy without its server knows nothing", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "<html>", http.StatusBadGateway)
		}, ErrAnswerLost, 0},
		{"a redirect is not followed: it would carry the token away", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		}, ErrAnswerLost, 0},
		{"a connection that is cut before the answer", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, ErrAnswerLost, 0},
		{"a connection that is cut within the answer", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("{"))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, ErrAnswerLost, 0},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			c := connect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				row.handler(w, r)
			}))
			_, err := c.Hibernate(t.Context(), View{ResourceVersion: "1"}, noon, "idle", "")
			wantClass(t, err, row.want, row.code)
			if n := requests.Load(); n != 1 {
				t.Errorf("the patch was sent %d times", n)
			}
		})
	}
}

// wantClass checks that an error is of exactly one class.
func wantClass(t *testing.T, err error, want any, code int) {
	t.Helper()
	var refusal *RefusedError
	wantError, _ := want.(error)
	isRefused := errors.As(err, &refusal)
	if got := errors.Is(err, ErrConflict); got != errors.Is(wantError, ErrConflict) {
		t.Errorf("conflict %t: %v", got, err)
	}
	if got := errors.Is(err, ErrAnswerLost); got != errors.Is(wantError, ErrAnswerLost) {
		t.Errorf("answer lost %t: %v", got, err)
	}
	if isRefused != (want == "refused") || isRefused && refusal.Code != code {
		t.Errorf("refused %t: %v", isRefused, err)
	}
}

func TestHibernate_answerIsLostAfterTheCommit(t *testing.T) {
	t.Parallel()
	a := stocked(t)
	c := connect(t, a)
	v, err := c.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a.with(func() { a.silent = true })
	wantClass(t, second(c.Hibernate(t.Context(), v, noon, "idle", "")), ErrAnswerLost, 0)
	if v, err = c.Get(t.Context()); err != nil || !v.Hibernating {
		t.Errorf("hibernating %t, error %v", v.Hibernating, err)
	}
}

func TestHibernate_apiServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	c, err := Connect(Endpoint{URL: "http://127.0.0.1:1"}, blue, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	wantClass(t, second(c.Hibernate(t.Context(), View{ResourceVersion: "1"}, noon, "idle", "")), ErrAnswerLost, 0)
	wantClass(t, second(c.Hibernate(t.Context(), View{}, noon, "idle", "")), "refused", 0)
}

func TestGet_clusterThatIsNotThere(t *testing.T) {
	t.Parallel()
	_, err := connect(t, newAPI()).Get(t.Context())
	wantClass(t, err, "refused", http.StatusNotFound)
}

func TestGet_answerThatIsNoCluster(t *testing.T) {
	t.Parallel()
	_, err := connect(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })).Get(t.Context())
	wantClass(t, err, ErrAnswerLost, 0)
}

// second drops the view of a call's results.
func second(_ View, err error) error { return err }
