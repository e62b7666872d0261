package control

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errAway = errors.New("the API server is away")

// world is everything outside the loop: a database, an API server and an observer.
type world struct {
	mutex sync.Mutex

	// The database.
	inUse, broken, shuttingDown, connected bool
	opened                                 int
	lastLook                               func(*world) // runs in each look

	// The API server.
	view                      kubernetes.View
	away, conflict            bool
	backups                   []string
	suspended, resumed, asked int
	hibernated                time.Time
	events                    []string
	results                   []Result
	status                    Status
	notify                    func(postgres.Kind, time.Time)
	failed                    func(error)
	listening                 bool
}

func (w *world) with(change func(*world)) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	change(w)
}

func (w *world) Sample(context.Context, activity.Cluster) (postgres.Sample, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.lastLook != nil {
		w.lastLook(w)
	}
	if w.broken {
		w.connected = false
		return postgres.Sample{}, errors.New("no connection")
	}
	if !w.connected {
		w.connected = true
		w.opened++
	}
	sample := postgres.Sample{Began: time.Now(), Ended: time.Now()}
	if w.inUse {
		sample.Tally.Add(activity.Session{BackendType: "client backend", State: "idle"}, activity.Cluster{})
	}
	return sample, nil
}

// notification is what the newest listener calls.
func (w *world) notification() func(postgres.Kind, time.Time) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.notify
}

func (w *world) Close() { w.with(func(w *world) { w.connected = false }) }

func (w *world) ShuttingDown(context.Context) (bool, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.shuttingDown, nil
}

func (w *world) Run(ctx context.Context) {
	w.with(func(w *world) { w.listening = true })
	<-ctx.Done()
	w.with(func(w *world) { w.listening = false })
}

func (w *world) Connected() bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.listening
}

func (w *world) Get(context.Context) (kubernetes.View, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.away {
		return kubernetes.View{}, errAway
	}
	return w.view, nil
}

func (w *world) Hibernate(_ context.Context, _ kubernetes.View, at time.Time, _ string) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	switch {
	case w.away:
		return errAway
	case w.conflict:
		return kubernetes.ErrConflict
	}
	w.hibernated = at
	w.view.Hibernating = true
	return nil
}

func (w *world) RunningBackups(context.Context) ([]string, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.asked++
	if w.away {
		return nil, errAway
	}
	return w.backups, nil
}

func (w *world) SuspendBackups(context.Context, time.Time) (int, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.away {
		return 0, errAway
	}
	w.suspended++
	return 1, nil
}

func (w *world) ResumeBackups(context.Context) (int, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.away {
		return 0, errAway
	}
	w.resumed++
	return w.suspended, nil
}

func (w *world) Record(_ context.Context, _ kubernetes.View, e kubernetes.Event, _ time.Time) {
	w.with(func(w *world) { w.events = append(w.events, e.Reason) })
}

func (w *world) Publish(status Status)        { w.with(func(w *world) { w.status = status }) }
func (w *world) Sampled(time.Duration, error) {}
func (w *world) Notified(postgres.Kind)       {}
func (w *world) Attempted(result Result) {
	w.with(func(w *world) { w.results = append(w.results, result) })
}

// healthy is a Cluster whose primary is this pod, with a threshold of 30 seconds.
func healthy() kubernetes.View {
	return kubernetes.View{
		UID: "u", Name: "c", CurrentPrimary: "c-1", TargetPrimary: "c-1", Healthy: true, PluginListed: true,
		Instances: []string{"c-1"}, ApplicationDatabase: "app",
		Annotations: map[string]string{idle.KeyEnabled: "true", idle.KeyInactivityMinutes: "0.5"},
	}
}

// live runs a test with a loop in a bubble whose clock only the test's waiting moves.
func live(t *testing.T, test func(*testing.T, *world, *Loop)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{view: healthy()}
		loop := New(Parts{
			Sampler: w, Server: w, Kubernetes: w, Observer: w, Pod: "c-1", Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Listen: func(_ string, notify func(postgres.Kind, time.Time), failed func(error)) Listener {
				w.with(func(w *world) { w.notify, w.failed = notify, failed })
				return w
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); loop.Run(ctx) }()
		test(t, w, loop)
		cancel()
		<-done
		w.with(func(w *world) {
			if w.connected || w.listening {
				t.Error("a session is open after the end")
			}
		})
	})
}

// wait lets the bubble's clock run and everything settle.
func wait(d time.Duration) {
	time.Sleep(d) // the bubble's clock: no real time passes
	synctest.Wait()
}
