package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// watching starts a watch and returns its views; the watch ends with the test.
func watching(t *testing.T, c *Client) <-chan View {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	seen, ended := make(chan View), make(chan struct{})
	go func() {
		defer close(ended)
		c.Watch(ctx, func(v View) {
			select {
			case seen <- v:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return seen
}

// await returns the first view that satisfies want.
func await(t *testing.T, seen <-chan View, want func(View) bool) View {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case v := <-seen:
			if want(v) {
				return v
			}
		case <-late:
			t.Fatal("not seen")
		}
	}
}

// phased is the Cluster with a given threshold, which distinguishes the states of a test.
func phased(minutes string) string {
	return clusterWith("annotations", `, "xata.io/scale-to-zero-inactivity-minutes": "`+minutes+`"`)
}

func minutes(want string) func(View) bool {
	return func(v View) bool { return v.Annotations["xata.io/scale-to-zero-inactivity-minutes"] == want }
}

// count returns how many requests contain a text.
func (a *apiServer) count(text string) (n int) {
	a.with(func() {
		for _, request := range a.requests {
			if strings.Contains(request, text) {
				n++
			}
		}
	})
	return n
}

func TestWatch_seesTheClusterAndEveryChange(t *testing.T) {
	t.Parallel()
	a := newAPI()
	a.put(t, clusters, phased("1"))
	seen := watching(t, connect(t, a))
	await(t, seen, minutes("1"))
	for _, next := range []string{"2", "3"} {
		a.put(t, clusters, phased(next))
		await(t, seen, minutes(next))
	}
	if n := a.count("watch=true"); n != 1 {
		t.Errorf("%d watches for what one watch shows", n)
	}
	a.with(func() {
		requests := strings.Join(a.requests, "\n\n") + "\n"
		golden(t, "watch.requests", regexp.MustCompile(`timeoutSeconds=\d+`).ReplaceAllString(requests, "timeoutSeconds=300 to 600"))
	})
}

func TestWatch_survives(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		// harm breaks the open watch; later changes must still be seen.
		harm func(t *testing.T, a *apiServer)
		mend func(a *apiServer)
	}{
		{"a connection that is cut", func(_ *testing.T, a *apiServer) {
			a.with(func() { close(a.cut); a.cut = make(chan struct{}) })
		}, func(*apiServer) {}},
		{"an API server that is down and comes back", func(_ *testing.T, a *apiServer) {
			a.with(func() { a.down = true; close(a.cut); a.cut = make(chan struct{}) })
		}, func(a *apiServer) { a.with(func() { a.down = false }) }},
		{"a history that is forgotten (410)", func(_ *testing.T, a *apiServer) {
			a.with(func() { a.compacted = a.version; close(a.changed); a.changed = make(chan struct{}) })
		}, func(*apiServer) {}},
		{"an object that is not understood", func(t *testing.T, a *apiServer) {
			a.put(t, clusters, `{"metadata": {"name": "blue"}, "spec": []}`)
		}, func(*apiServer) {}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			a := newAPI()
			a.put(t, clusters, phased("1"))
			seen := watching(t, connect(t, a))
			await(t, seen, minutes("1"))
			a.put(t, clusters, phased("2")) // once this is seen, the watch is open
			await(t, seen, minutes("2"))
			row.harm(t, a)
			a.put(t, clusters, phased("3"))
			row.mend(a)
			await(t, seen, minutes("3"))
			a.put(t, clusters, phased("4"))
			await(t, seen, minutes("4"))
		})
	}
}

func TestWatch_waitsForAClusterThatIsNotThereYet(t *testing.T) {
	t.Parallel()
	a := newAPI()
	seen := watching(t, connect(t, a))
	a.put(t, clusters, phased("1"))
	await(t, seen, minutes("1"))
}

// answering returns a client for a synctest bubble: it uses no network.
func answering(t *testing.T, answer func(*http.Request) (*http.Response, error)) *Client {
	t.Helper()
	c, err := newClient(configure(Endpoint{URL: "http://api"}, blue), &http.Client{Transport: tripper(answer)}, blue, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// said is an answer with a body.
func said(body io.Reader) *http.Response {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(body)}
}

const noClusters = `{"apiVersion": "postgresql.cnpg.io/v1", "kind": "ClusterList", "metadata": {"resourceVersion": "1"}, "items": []}`

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") == "true" }

func TestWatch_backsOffWhileTheAPIServerIsAway(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		answer func(*http.Request) (*http.Response, error)
	}{
		{"it refuses connections", func(*http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED }},
		{"it lists, and does not watch", func(r *http.Request) (*http.Response, error) {
			if isWatch(r) {
				return nil, errors.New("forbidden")
			}
			return said(strings.NewReader(noClusters)), nil
		}},
		{"it lists, and refuses the connection of a watch", func(r *http.Request) (*http.Response, error) {
			if isWatch(r) {
				return nil, syscall.ECONNREFUSED
			}
			return said(strings.NewReader(noClusters)), nil
		}},
		{"it ends every watch at once", func(r *http.Request) (*http.Response, error) {
			if isWatch(r) {
				return said(strings.NewReader("")), nil
			}
			return said(strings.NewReader(noClusters)), nil
		}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				c := answering(t, func(r *http.Request) (*http.Response, error) {
					tries++
					return row.answer(r)
				})
				const lasts = 5 * time.Minute
				ctx, cancel := context.WithTimeout(t.Context(), lasts)
				defer cancel()
				c.Watch(ctx, func(View) {})
				if least, most := int(lasts/(15*time.Second))-1, 2*int(lasts/c.backoff.Cap)+16; tries < least || tries > most {
					t.Errorf("%d requests in five minutes, want %d to %d", tries, least, most)
				}
			})
		})
	}
}

// An API server that has lost its watches neither answers nor ends them.
func TestWatch_isCutWhenTheAPIServerForgetsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var watches []time.Time
		c := answering(t, func(r *http.Request) (*http.Response, error) {
			if !isWatch(r) {
				return said(strings.NewReader(noClusters)), nil
			}
			watches = append(watches, time.Now())
			reader, writer := io.Pipe()
			context.AfterFunc(r.Context(), func() { _ = writer.CloseWithError(r.Context().Err()) })
			return said(reader), nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		c.Watch(ctx, func(View) {})
		for i := range len(watches) - 1 {
			if got := watches[i+1].Sub(watches[i]); got > 10*time.Minute+2*callTimeout {
				t.Errorf("a watch that is forgotten lasted %v", got)
			}
		}
		if len(watches) < 6 {
			t.Errorf("%d watches in an hour", len(watches))
		}
	})
}

func TestClient_everyCallEndsInTime(t *testing.T) {
	t.Parallel()
	hangs := func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	refuses := func(r *http.Request) (*http.Response, error) {
		if body, err := io.ReadAll(r.Body); err != nil || !bytes.Contains(body, []byte(contract.AnnotationCounts)) {
			return hangs(r)
		}
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-time.After(callTimeout - time.Second):
		}
		refusal := said(strings.NewReader(`{"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 403}`))
		refusal.StatusCode = http.StatusForbidden
		return refusal, nil
	}
	const endless = `{"apiVersion": "postgresql.cnpg.io/v1", "kind": "BackupList", "metadata": {"continue": "more"}, "items": []}`
	for _, row := range []struct {
		rule   string
		answer func(*http.Request) (*http.Response, error)
		ask    func(ctx context.Context, c *Client) error
		want   time.Duration
	}{
		{"reading the Cluster", hangs, func(ctx context.Context, c *Client) error { _, err := c.Get(ctx); return err }, callTimeout},
		{"turning hibernation on", hangs, func(ctx context.Context, c *Client) error {
			return second(c.Hibernate(ctx, View{ResourceVersion: "1"}, noon, "idle", "{}"))
		}, callTimeout},
		{"turning it on without the counts that were refused", refuses, func(ctx context.Context, c *Client) error {
			return second(c.Hibernate(ctx, View{ResourceVersion: "1"}, noon, "idle", "{}"))
		}, callTimeout},
		{"listing the Backups", hangs, func(ctx context.Context, c *Client) error { _, err := c.RunningBackups(ctx); return err }, callTimeout},
		{"listing pages without end", func(r *http.Request) (*http.Response, error) {
			return said(strings.NewReader(endless)), r.Context().Err()
		}, func(ctx context.Context, c *Client) error { _, err := c.RunningBackups(ctx); return err }, listTimeout},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := answering(t, row.answer)
				began := time.Now()
				if err := row.ask(t.Context(), c); !errors.Is(err, ErrAnswerLost) {
					t.Errorf("error %v", err)
				}
				if got := time.Since(began); got > row.want {
					t.Errorf("it took %v", got)
				}
			})
		})
	}
}

func TestWatch_logsTheSameOutageOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var output bytes.Buffer
		c := answering(t, func(*http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED })
		c.logger = slog.New(slog.NewJSONHandler(&output, nil))
		ctx, cancel := context.WithTimeout(t.Context(), repeatAfter+time.Minute)
		defer cancel()
		c.Watch(ctx, func(View) {})
		if got := strings.Count(output.String(), "connection refused"); got != 2 {
			t.Errorf("an outage of eleven minutes was logged %d times:\n%s", got, &output)
		}
	})
}
