package control

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/evidence"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/introduction"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
	"github.com/cnpg-i/scale-to-zero/sidecar/siblings"
	"github.com/cnpg-i/scale-to-zero/sidecar/sockets"
)

func TestMain(m *testing.M) {
	if port, err := strconv.ParseUint(os.Getenv(stormPort), 10, 16); err == nil { // we are the process that a benchmark watches
		if err := watch(uint16(port)); err != nil {
			slog.Error("the watcher failed", "error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var errAway = errors.New("the API server is away")

// world is everything outside the loop: a database, an API server and an observer.
type world struct {
	mutex sync.Mutex

	// The database.
	inUse, broken, shuttingDown, connected bool
	opened, samples                        int
	ledger                                 activity.Ledger
	standing                               []idle.Reason
	stateChanged                           time.Time // of the session that is open while inUse
	terminated                             []activity.Doomed
	scrapes                                int
	scraped                                func(*world)

	// The kernel.
	silent  bool // it reports nothing
	joined  int
	reports *reports

	// The disk and the other instances.
	kept     *evidence.Evidence
	answers  func(*world) []siblings.Answer
	lastLook func(*world) // runs in each look
	// afterwards runs once in a look, after the counters have been read.
	afterwards func(*world)

	// The API server.
	view                      kubernetes.View
	away, conflict            bool
	backups                   []string
	suspended, resumed, asked int
	hibernated                time.Time
	events                    []string
	results                   []Result
	status                    Status
	notify                    func(postgres.Notification)
	verdicts                  []activity.Verdict
	withdrawn                 int
	failed                    func(error)
	listening                 bool

	// The wake gateway.
	loop         *Loop
	gatewayAway  bool          // it does not acknowledge
	gatewayTakes time.Duration // until it does

	introductions *introduction.Book
	note          note
}

// note is the file that tells PostgreSQL's container.
type note struct{ left atomic.Bool }

func (n *note) Leave() error    { n.left.Store(true); return nil }
func (n *note) TakeBack() error { n.left.Store(false); return nil }

func (w *world) with(change func(*world)) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	change(w)
}

func (w *world) Sample(_ context.Context, rules activity.Rules) (postgres.Sample, error) {
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
	w.samples++
	sample := postgres.Sample{Began: time.Now(), Ended: time.Now(), Started: 7, Ledger: maps.Clone(w.ledger), Blockers: w.standing}
	if w.inUse {
		sample.Tally.Add(activity.Session{
			BackendType: "client backend", State: "idle", PID: 11, Started: 1, Changed: w.stateChanged.UnixMicro(),
			IdleFor: time.Since(w.stateChanged), Peer: peer, User: "app",
		}, rules)
	}
	if then := w.afterwards; then != nil {
		w.afterwards = nil
		then(w)
	}
	return sample, nil
}

// looks is how many have succeeded.
func (w *world) looks() int {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.samples
}

func (w *world) Scrape(context.Context, bool) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.scrapes++
	if w.scraped == nil {
		return errors.New("nobody is there")
	}
	w.scraped(w)
	return nil
}

// notification is what the newest listener calls.
func (w *world) notification() func(postgres.Notification) {
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

func (w *world) Withdraw(context.Context, kubernetes.View) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	switch {
	case w.away:
		return errAway
	case w.conflict:
		return kubernetes.ErrConflict
	}
	w.withdrawn++
	w.view.Hibernating = false
	return nil
}

func (w *world) Annotate(_ context.Context, _ kubernetes.View, key string, value *string) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.away {
		return errAway
	}
	w.view.Annotations = maps.Clone(w.view.Annotations)
	if value == nil {
		delete(w.view.Annotations, key)
	} else {
		w.view.Annotations[key] = *value
	}
	if key == idle.KeyAnnounced && value != nil && !w.gatewayAway {
		w.view.Annotations[idle.KeyGatewayReady] = *value
		go func(takes time.Duration) {
			time.Sleep(takes) // the bubble's clock
			w.loop.See(w.seen())
		}(w.gatewayTakes)
	}
	return nil
}

func (w *world) Terminate(_ context.Context, doomed []activity.Doomed) (int, error) {
	w.with(func(w *world) { w.terminated = doomed })
	return len(doomed), nil
}

func (w *world) Ask(context.Context, map[string]netip.Addr) []siblings.Answer {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.answers == nil {
		return nil
	}
	return w.answers(w)
}

func (w *world) Save(e evidence.Evidence) error {
	w.with(func(w *world) { w.kept = &e })
	return nil
}

func (w *world) Load(string) (evidence.Evidence, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.kept == nil {
		return evidence.Evidence{}, fs.ErrNotExist
	}
	return *w.kept, nil
}

// reports is a kernel that says what the test tells it to.
type reports struct {
	world  *world
	ended  chan []activity.Ended
	closed chan struct{}
}

func (r *reports) Prove(context.Context, bool) ([]activity.Ended, activity.Handshake, error) {
	r.world.mutex.Lock()
	defer r.world.mutex.Unlock()
	if r.world.silent {
		return nil, activity.Handshake{}, sockets.ErrUnsupported
	}
	return nil, activity.Handshake{Shortest: 1600, Longest: 1700}, nil
}

func (r *reports) Receive(time.Time) ([]activity.Ended, error) {
	select {
	case ended := <-r.ended:
		if ended == nil {
			return nil, sockets.ErrLost
		}
		return ended, nil
	case <-r.closed:
		return nil, errors.New("closed")
	}
}

func (r *reports) Close() { close(r.closed) }

func (w *world) openReports() (Reports, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.joined++
	w.reports = &reports{world: w, ended: make(chan []activity.Ended, 100), closed: make(chan struct{})}
	return w.reports, nil
}

// report lets the kernel report a session that ended; one that nobody listens to is lost.
func (w *world) report(ended ...activity.Ended) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	select {
	case <-w.reports.closed:
	default:
		w.reports.ended <- ended
	}
}

// peer is the client that is there while inUse.
var peer = netip.MustParseAddrPort("10.0.0.9:4711")

// leave ends the client's session.
func (w *world) leave() {
	w.with(func(w *world) {
		w.inUse = false
		w.ledger["app"] = activity.Database{Sessions: w.ledger["app"].Sessions + 1}
	})
	w.report(activity.Ended{Peer: peer, Sent: 700, At: time.Now()})
}

func (w *world) Judged(v activity.Verdict) {
	w.with(func(w *world) { w.verdicts = append(w.verdicts, v) })
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

// versions makes every view a new one.
var versions atomic.Int64

// healthy is a Cluster whose primary is this pod, with a threshold of 30 seconds.
func healthy() kubernetes.View {
	return kubernetes.View{
		ResourceVersion: strconv.FormatInt(versions.Add(1), 10),
		UID:             "u", Name: "c", CurrentPrimary: "c-1", TargetPrimary: "c-1", Healthy: true, PluginListed: true,
		Instances: []string{"c-1"}, ApplicationDatabase: "app",
		Annotations: map[string]string{idle.KeyEnabled: "true", idle.KeyInactivityMinutes: "0.5"},
	}
}

// live runs a test with a loop in a bubble whose clock only the test's waiting moves.
func live(t *testing.T, test func(*testing.T, *world, *Loop)) {
	t.Helper()
	liveAfter(t, nil, test)
}

// liveAfter does the same in a world that is prepared before the loop begins.
func liveAfter(t *testing.T, prepare func(*world), test func(*testing.T, *world, *Loop)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{view: healthy(), ledger: activity.Ledger{"postgres": {}, "app": {}}, introductions: introduction.NewBook()}
		if prepare != nil {
			prepare(w)
		}
		loop := New(Parts{
			Sampler: w, Server: w, Kubernetes: w, Observer: w, Siblings: w, Evidence: w, Introductions: w.introductions, Exporter: w, Farewell: &w.note, Pod: "c-1", PodUID: "pod-uid",
			Logger: slog.New(slog.DiscardHandler), OpenReports: w.openReports,
			OpenTerminator: func(context.Context) (Terminator, error) { return w, nil },
			Listen: func(_ string, notify func(postgres.Notification), failed func(error)) Listener {
				w.with(func(w *world) { w.notify, w.failed = notify, failed })
				return w
			},
		})
		w.loop = loop
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

// seen is the Cluster as a watch would bring it.
func (w *world) seen() kubernetes.View {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	v := w.view
	v.ResourceVersion = strconv.FormatInt(versions.Add(1), 10)
	return v
}
