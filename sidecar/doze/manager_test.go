package doze

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// patient waits for an answer for as long as a slow machine may take.
func patient(url string) *manager {
	m := newManager(url)
	m.http.Timeout = time.Minute
	return m
}

func TestMightBeUnavailable_isKnownFromAnAnswerThatSaysSo(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		status int
		body   string
		want   bool
		err    bool
	}{
		{"set", http.StatusOK, `{"isPrimary":true,"mightBeUnavailable":true,"node":""}`, true, false},
		{"not set", http.StatusOK, `{"isPrimary":true,"mightBeUnavailable":false,"node":""}`, false, false},
		{"not in the answer", http.StatusOK, `{}`, false, true},
		{"an error of the manager's", http.StatusInternalServerError, `{"mightBeUnavailable":true}`, false, true},
		{"an answer that leads elsewhere", http.StatusTemporaryRedirect, ``, false, true},
		{"no JSON", http.StatusOK, `OK`, false, true},
		{"an answer without an end", http.StatusOK, `{"node":"` + strings.Repeat("x", maximumStatus) + `","mightBeUnavailable":true}`, false, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || r.URL.Path != "/pg/status" {
					t.Errorf("%s %s", r.Method, r.URL)
				}
				w.WriteHeader(row.status)
				_, _ = w.Write([]byte(row.body))
			}))
			defer server.Close()
			got, err := patient(server.URL + "/pg/status").mightBeUnavailable(t.Context())
			if got != row.want || (err != nil) != row.err {
				t.Errorf("got %t, %v", got, err)
			}
		})
	}
}

func TestMightBeUnavailable_isNotKnownWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Close()
	if got, err := newManager(server.URL).mightBeUnavailable(t.Context()); got || err == nil {
		t.Errorf("got %t, %v of nobody", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	silent := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { cancel(); <-r.Context().Done() }))
	defer silent.Close()
	if got, err := patient(silent.URL).mightBeUnavailable(ctx); got || !errors.Is(err, context.Canceled) {
		t.Errorf("got %t, %v of one that is silent", got, err)
	}
}

// An instance manager that says nothing of the flag must not be taken for one that says that it is unset.
func FuzzParseStatus(f *testing.F) {
	for _, seed := range []string{`{"mightBeUnavailable":true}`, `{"mightBeUnavailable":false,"isPrimary":true}`, `{}`, `null`, `[]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		set, err := parseStatus(body)
		if err != nil {
			if set || !errors.Is(err, errStatus) {
				t.Errorf("got %t, %v", set, err)
			}
			return
		}
		var status map[string]any
		said := func(key string) bool { return strings.EqualFold(key, "mightBeUnavailable") && status[key] == set }
		if json.Unmarshal(body, &status) != nil || !slices.ContainsFunc(slices.Collect(maps.Keys(status)), said) {
			t.Errorf("%q is taken for %t", body, set)
		}
	})
}
