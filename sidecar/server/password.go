package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// passwordInterval is the least time between two questions to PostgreSQL, so that strangers cannot keep it busy.
const passwordInterval = 100 * time.Millisecond

// passwordHandler answers whether the password of a role has been set since PostgreSQL started.
func passwordHandler(isSet func(ctx context.Context, role string) (bool, error)) http.HandlerFunc {
	var busy sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) {
		if !busy.TryLock() {
			http.Error(w, "another request is being answered", http.StatusServiceUnavailable)
			return
		}
		defer time.AfterFunc(passwordInterval, busy.Unlock)
		if set, err := isSet(r.Context(), r.URL.Query().Get(contract.QueryParameterRole)); err != nil || !set {
			http.Error(w, "the password has not been set yet, or the server does not answer", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}
