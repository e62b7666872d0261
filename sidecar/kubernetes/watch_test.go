package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// watching starts a watch and returns what it sees; the watch ends with the test.
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

// await returns the first view that is as wanted.
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

// phased is the Cluster with a threshold that tells the states of a test apart.
func phased(minutes string) string {
	return clusterWith("annotations", `, "xata.io/scale-to-zero-inactivity-minutes": "`+minutes+`"`)
}

func minutes(want string) func(View) bool {
	return func(v View) bool { return v.Annotations["xata.io/scale-to-zero-inactivity-minutes"] == want }
}

// count is how many requests contain a text.
func (a *api) count(text string) (n int) {
	a.with(func() {
		for _, request := range a.requests {
			if strings.Contains(request, text) {
				n++
			}
		}
	})
	return n
}

func TestWatchSeesTheClusterAndEveryChange(t *testing.T) {
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
	a.with(func() { golden(t, "watch.requests", strings.Join(a.requests, "\n\n")+"\n") })
}

func TestWatchSurvives(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		// harm is done while the watch is open; what is changed then must be seen afterwards.
		harm func(t *testing.T, a *api)
		mend func(a *api)
	}{
		{"a connection that is cut", func(_ *testing.T, a *api) {
			a.with(func() { close(a.cut); a.cut = make(chan struct{}) })
		}, func(*api) {}},
		{"an API server that is down and comes back", func(_ *testing.T, a *api) {
			a.with(func() { a.down = true; close(a.cut); a.cut = make(chan struct{}) })
		}, func(a *api) { a.with(func() { a.down = false }) }},
		{"a history that is forgotten (410)", func(_ *testing.T, a *api) {
			a.with(func() { a.compacted = a.version; close(a.changed); a.changed = make(chan struct{}) })
		}, func(*api) {}},
		{"an object that is not understood", func(t *testing.T, a *api) {
			a.put(t, clusters, `{"metadata": {"name": "blue"}, "spec": []}`)
		}, func(*api) {}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			a := newAPI()
			a.put(t, clusters, phased("1"))
			seen := watching(t, connect(t, a))
			await(t, seen, minutes("1"))
			a.put(t, clusters, phased("2")) // once it is seen the watch is open
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

func TestWatchWaitsForAClusterThatIsNotThereYet(t *testing.T) {
	t.Parallel()
	a := newAPI()
	seen := watching(t, connect(t, a))
	a.put(t, clusters, phased("1"))
	await(t, seen, minutes("1"))
}

// answering is a client in a synctest bubble: no network, and time is the bubble's.
func answering(answer func(*http.Request) (*http.Response, error)) *Client {
	base := &url.URL{Scheme: "http", Host: "api"}
	return newClient(base, tripper(answer), blue, slog.New(slog.DiscardHandler))
}

// said is an answer with a body.
func said(body io.Reader) *http.Response {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(body)}
}

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") == "true" }

func TestWatchBacksOffWhileTheAPIServerIsAway(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		answer func(*http.Request) (*http.Response, error)
	}{
		{"it refuses connections", func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }},
		{"it lists, and does not watch", func(r *http.Request) (*http.Response, error) {
			if isWatch(r) {
				return nil, errors.New("forbidden")
			}
			return said(strings.NewReader(`{"items": []}`)), nil
		}},
		{"it ends every watch at once", func(r *http.Request) (*http.Response, error) {
			if isWatch(r) {
				return said(strings.NewReader("")), nil
			}
			return said(strings.NewReader(`{"items": []}`)), nil
		}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var tries []time.Time
				c := answering(func(r *http.Request) (*http.Response, error) {
					if !isWatch(r) {
						tries = append(tries, time.Now())
					}
					return row.answer(r)
				})
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				c.Watch(ctx, func(View) {})
				wait := c.retry.first
				for i := range len(tries) - 1 {
					if got := tries[i+1].Sub(tries[i]); got < wait*4/5-time.Nanosecond || got > wait {
						t.Errorf("wait %d was %v, want %v less at most a fifth", i, got, wait)
					}
					wait = min(2*wait, c.retry.last)
				}
				if len(tries) < 30 {
					t.Errorf("only %d tries in five minutes", len(tries))
				}
			})
		})
	}
}

// TestWatchReadsEverythingAnewWithinFiveMinutes has an API server that forgets its watches: it neither answers nor ends
// them.
func TestWatchReadsEverythingAnewWithinFiveMinutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lists []time.Time
		c := answering(func(r *http.Request) (*http.Response, error) {
			if !isWatch(r) {
				lists = append(lists, time.Now())
				return said(strings.NewReader(`{"items": []}`)), nil
			}
			reader, writer := io.Pipe()
			context.AfterFunc(r.Context(), func() { _ = writer.CloseWithError(r.Context().Err()) })
			return said(reader), nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		c.Watch(ctx, func(View) {})
		for i := range len(lists) - 1 {
			if got := lists[i+1].Sub(lists[i]); got > 5*time.Minute {
				t.Errorf("nothing was read for %v", got)
			}
		}
		if len(lists) < 12 || len(lists) > 13 {
			t.Errorf("%d lists in an hour", len(lists))
		}
	})
}

func TestEveryRequestEndsInTime(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		ask  func(ctx context.Context, c *Client) error
		want time.Duration
	}{
		{"reading the Cluster", func(ctx context.Context, c *Client) error { _, err := c.Get(ctx); return err }, callTimeout},
		{"turning the switch on", func(ctx context.Context, c *Client) error {
			return c.Hibernate(ctx, View{ResourceVersion: "1"}, noon, "idle")
		}, callTimeout},
		{"listing the Backups", func(ctx context.Context, c *Client) error { _, err := c.RunningBackups(ctx); return err }, callTimeout},
		{"opening a watch", func(ctx context.Context, c *Client) error { _, _, err := c.stream(ctx, "1"); return err }, callTimeout},
		{"listing pages without end", func(ctx context.Context, c *Client) error {
			c.http.Transport = tripper(func(r *http.Request) (*http.Response, error) {
				if err := r.Context().Err(); err != nil {
					return nil, err
				}
				return said(strings.NewReader(`{"metadata": {"continue": "more"}}`)), nil
			})
			_, err := c.RunningBackups(ctx)
			return err
		}, listTimeout},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := answering(func(r *http.Request) (*http.Response, error) {
					<-r.Context().Done()
					return nil, r.Context().Err()
				})
				began := time.Now()
				if err := row.ask(t.Context(), c); err == nil {
					t.Error("no error")
				}
				if got := time.Since(began); got > row.want {
					t.Errorf("it took %v", got)
				}
			})
		})
	}
}

func TestTheSameOutageIsToldOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var output bytes.Buffer
		var down atomic.Bool
		down.Store(true)
		c := answering(func(r *http.Request) (*http.Response, error) {
			switch {
			case down.Load():
				return nil, errors.New("connection refused")
			case isWatch(r):
				reader, writer := io.Pipe()
				context.AfterFunc(r.Context(), func() { _ = writer.CloseWithError(r.Context().Err()) })
				time.AfterFunc(time.Minute, func() { down.Store(true); _ = writer.CloseWithError(io.ErrUnexpectedEOF) })
				return said(reader), nil
			default:
				return said(strings.NewReader(`{"items": []}`)), nil
			}
		})
		c.logger = slog.New(slog.NewJSONHandler(&output, nil))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		time.AfterFunc(time.Minute, func() { down.Store(false) })
		c.Watch(ctx, func(View) {})
		if got := strings.Count(output.String(), "connection refused"); got != 2 {
			t.Errorf("two outages were told %d times:\n%s", got, &output)
		}
	})
}

// FuzzDecodeChange holds that no stream makes the decoder panic or go on for ever.
func FuzzDecodeChange(f *testing.F) {
	for _, seed := range []string{
		`{"type": "ADDED", "object": ` + clusterWith() + `}{"type": "BOOKMARK", "object": {}}`,
		`{"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}`, `{"type": "MODIFIED"}`, `{"type": "ERROR"}`, `{`, `[]`, `null`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		decoder := json.NewDecoder(bytes.NewReader(stream))
		for range len(stream) + 1 {
			v, err := decodeChange(decoder)
			if err != nil {
				if v != nil {
					t.Error("an error came with a view")
				}
				return
			}
		}
		t.Error("the stream has no end")
	})
}

// FuzzDecodeViews holds that no list makes the decoder panic.
func FuzzDecodeViews(f *testing.F) {
	f.Add([]byte(`{"metadata": {"resourceVersion": "9"}, "items": [` + clusterWith() + `]}`))
	f.Add([]byte(`{"items": [null, {}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		views, version, err := decodeViews(body)
		if err != nil && (version != "" || slices.ContainsFunc(views, func(View) bool { return true })) {
			t.Error("an error came with views")
		}
	})
}
