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
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/doze"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/monitor"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
	"github.com/cnpg-i/scale-to-zero/sidecar/process"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
	"github.com/cnpg-i/scale-to-zero/sidecar/sockets"
)

func TestMain(m *testing.M) {
	if port, err := strconv.ParseUint(os.Getenv(stormPort), 10, 16); err == nil { // this is the process that a benchmark measures
		if err := watch(uint16(port)); err != nil {
			slog.Error("the watcher failed", "error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var errAway = errors.New("the API server is away")

// world is everything outside of the loop: a database, an API server and an observer.
type world struct {
	mutex sync.Mutex

	// The database.
	inUse, broken, shuttingDown, connected bool
	opened, samples                        int
	ledger                                 activity.Ledger
	started, checkpointed                  int64 // in microseconds since 1970
	standing                               []idle.Reason
	stateChanged                           time.Time // of the session that is open while inUse
	terminated                             []activity.Terminable
	terminators                            int           // how many are open
	terminatorTakes                        time.Duration // to open
	terminateLost                          bool          // whether the answer is

	// The kernel.
	silent  bool // it reports nothing
	joined  int
	reports *reports

	// The disk and the other instances.
	kept     *monitor.Checkpoint
	counts   idle.WhatIf
	answers  func(sampled bool) []siblingAnswer
	inSample func(*world) // runs in each sample
	// afterwards runs once in a sample, after the counters were read.
	afterwards func(*world)

	// The API server.
	view                      kubernetes.View
	serverAhead               time.Duration // of the clock of this node
	announcements             []string
	away, conflict            bool
	lost                      sleep.Action // whose answer is lost
	backups                   []string
	suspended, resumed, asked int
	left                      []string // schedules that stay suspended
	hibernated                time.Time
	hibernateTakes            time.Duration // until the answer to the hibernation patch arrives
	events, messages, log     []string
	eventTakes                time.Duration // to be written
	eventsLost                int           // requests whose answers are lost
	results                   []sleep.Result
	status                    Status
	reasons                   map[idle.Reason]bool // the published ones
	notify                    func(postgres.Notification)
	verdicts                  []activity.Verdict
	withdrawn                 int
	failed                    func(error)
	listening, misses         bool // misses: notifications, before it listened

	// The wake gateway.
	loop          *Loop
	stop          func() // tells the loop to end
	monitor       *monitor.Monitor
	gatewayAway   bool          // it does not acknowledge
	keepAwakeLost bool          // the answer to the next request to stay awake is lost
	gatewayTakes  time.Duration // until it acknowledges

	clientAddrs *monitor.ClientAddrs
	marker      marker
	markerFirst bool // it was left before hibernation was turned on

	instance instance
}

// marker is the file for which PostgreSQL's preStop hook looks.
type marker struct{ left atomic.Bool }

func (m *marker) Leave() error  { m.left.Store(true); return nil }
func (m *marker) Remove() error { m.left.Store(false); return nil }

func (w *world) with(change func(*world)) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	change(w)
}

func (w *world) Sample(_ context.Context, rules activity.Rules) (postgres.Sample, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.inSample != nil {
		w.inSample(w)
	}
	if w.broken || w.shuttingDown && !w.connected {
		w.connected = false
		return postgres.Sample{}, errors.New("no connection")
	}
	if !w.connected {
		w.connected = true
		w.opened++
	}
	w.samples++
	sample := postgres.Sample{Began: time.Now(), Ended: time.Now(), Started: w.started, Checkpointed: w.checkpointed, Ledger: maps.Clone(w.ledger), Blockers: w.standing}
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

// Write keeps a line of the log.
func (w *world) Write(line []byte) (int, error) {
	w.with(func(w *world) { w.log = append(w.log, string(line)) })
	return len(line), nil
}

// sampled returns how many samples have succeeded.
func (w *world) sampled() int {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.samples
}

// notification is the newest listener's callback.
func (w *world) notification() func(postgres.Notification) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.notify
}

func (w *world) listenFailed() func(error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.failed
}

func (w *world) Close() { w.with(func(w *world) { w.connected = false }) }

func (w *world) ShuttingDown(context.Context) (bool, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.shuttingDown, nil
}

func (w *world) Run(ctx context.Context) {
	w.with(func(w *world) { w.listening = true })
	if w.misses {
		w.notification()(postgres.Notification{Kind: postgres.KindBacklog, At: time.Now()})
	}
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

// written returns the Cluster after a patch.
func (w *world) written() kubernetes.View {
	w.view.ResourceVersion = strconv.FormatInt(versions.Add(1), 10)
	return w.view
}

// patched applies a patch of the Cluster, unless the API server is down or the Cluster has changed.
func (w *world) patched(change func()) (kubernetes.View, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	switch {
	case w.away:
		return kubernetes.View{}, errAway
	case w.conflict:
		return kubernetes.View{}, kubernetes.ErrConflict
	}
	change()
	return w.written(), nil
}

func (w *world) Hibernate(_ context.Context, _ kubernetes.View, at time.Time, _, counts string) (kubernetes.View, error) {
	v, err := w.patched(func() {
		w.hibernated, w.markerFirst = at, w.marker.left.Load()
		w.view.Hibernating, w.view.Ours, w.view.Counts = true, true, counts
	})
	if err == nil && w.loses(sleep.Hibernate) {
		return kubernetes.View{}, kubernetes.ErrAnswerLost
	}
	if w.hibernateTakes != 0 { // the watch overtakes the answer
		w.loop.Deliver(v)
		time.Sleep(w.hibernateTakes) // the bubble's clock
	}
	return v, err
}

// loses reports whether the answer to a request is lost, once.
func (w *world) loses(a sleep.Action) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	lost := w.lost&a != 0
	w.lost &^= a
	return lost
}

func (w *world) Withdraw(context.Context, kubernetes.View) (kubernetes.View, error) {
	return w.patched(func() {
		w.withdrawn++
		w.view.Hibernating, w.view.Ours = false, false
	})
}

func (w *world) KeepAwake(ctx context.Context, v kubernetes.View, until *string, extends bool) (kubernetes.View, error) {
	if _, err := w.Annotate(ctx, v, contract.AnnotationKeepAwakeUntil, until); err != nil {
		return kubernetes.View{}, err
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.view.KeepAwakeOurs = !extends
	if w.keepAwakeLost {
		w.keepAwakeLost = false
		return kubernetes.View{}, kubernetes.ErrAnswerLost
	}
	return w.view, nil
}

func (w *world) Annotate(_ context.Context, _ kubernetes.View, key string, value *string) (kubernetes.View, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	switch {
	case w.away:
		return kubernetes.View{}, errAway
	case w.conflict && (key == contract.AnnotationKeepAwakeUntil || key == contract.AnnotationRestartFailed):
		return kubernetes.View{}, kubernetes.ErrConflict
	}
	w.view.Annotations = maps.Clone(w.view.Annotations)
	if value == nil {
		delete(w.view.Annotations, key)
	} else {
		w.view.Annotations[key] = *value
	}
	switch key {
	case contract.AnnotationPostgresStopped:
		w.view.Stopped = *value
	case contract.AnnotationRestartFailed:
		w.view.RestartFailed = *value
	}
	if key == contract.AnnotationAnnounced && value != nil {
		w.announcements = append(w.announcements, *value)
		w.view.WrittenAt = time.Now().Add(w.serverAhead).Truncate(time.Second)
	}
	if key == contract.AnnotationAnnounced && value != nil && !w.gatewayAway {
		go w.acknowledge(*value, w.gatewayTakes)
	}
	return w.written(), nil
}

// acknowledge is the gateway's delayed answer to an announcement.
func (w *world) acknowledge(announcement string, takes time.Duration) {
	time.Sleep(takes) // the bubble's clock
	w.mutex.Lock()
	w.view.Annotations = maps.Clone(w.view.Annotations)
	w.view.Annotations[contract.AnnotationGatewayReady] = announcement
	v := w.written()
	w.mutex.Unlock()
	w.loop.Deliver(v)
	if announced, err := contract.ParseAnnouncement(announcement); err == nil && announced.Doze {
		w.hold(announcement)
	}
}

// terminator is a session that terminates others.
type terminator struct{ world *world }

func (w *world) openTerminator(context.Context) (Terminator, error) {
	time.Sleep(w.terminatorTakes) // the bubble's clock
	w.with(func(w *world) { w.terminators++ })
	return terminator{w}, nil
}

func (t terminator) Terminate(_ context.Context, terminable []activity.Terminable) (int, error) {
	t.world.with(func(w *world) { w.terminated = terminable })
	if t.world.terminateLost {
		time.Sleep(3 * time.Second) // the bubble's clock
		return 0, errors.New("no answer")
	}
	return len(terminable), nil
}

func (t terminator) Close() { t.world.with(func(w *world) { w.terminators-- }) }

func (w *world) Ask(_ context.Context, _ map[string]netip.Addr, sample bool) []siblingAnswer {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.answers == nil {
		return nil
	}
	return w.answers(sample)
}

func (w *world) Save(e monitor.Checkpoint) error {
	w.with(func(w *world) { w.kept = &e })
	return nil
}

func (w *world) Load() (monitor.Checkpoint, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.kept == nil {
		return monitor.Checkpoint{}, fs.ErrNotExist
	}
	return *w.kept, nil
}

// savedCounts are the counts on the disk.
type savedCounts world

func (s *savedCounts) Save(counts idle.WhatIf) error {
	(*world)(s).with(func(w *world) { w.counts = counts })
	return nil
}

func (s *savedCounts) Load() (idle.WhatIf, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.counts, nil
}

// reports is a kernel that reports what the test passes to it.
type reports struct {
	world  *world
	ended  chan []activity.Ended
	next   chan []activity.Ended // what Wait has found
	closed chan struct{}
}

func (r *reports) Prove(context.Context) ([]activity.Ended, error) {
	r.world.mutex.Lock()
	defer r.world.mutex.Unlock()
	if r.world.silent {
		return nil, sockets.ErrUnsupported
	}
	return nil, nil
}

func (r *reports) Wait() error {
	select {
	case ended := <-r.ended:
		r.next <- ended
		return nil
	case <-r.closed:
		return errors.New("closed")
	}
}

func (r *reports) Arrived() (arrived []activity.Ended, err error) {
	for {
		var ended []activity.Ended
		select {
		case ended = <-r.next:
		case ended = <-r.ended:
		default:
			return arrived, err
		}
		if ended == nil {
			err = sockets.ErrLost
		}
		arrived = append(arrived, ended...)
	}
}

func (r *reports) Open() ([]activity.Open, error) { return nil, nil }

func (r *reports) Close() { close(r.closed) }

func (w *world) openReports() (monitor.SocketEvents, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.joined++
	w.reports = &reports{world: w, ended: make(chan []activity.Ended, 100), next: make(chan []activity.Ended, 1), closed: make(chan struct{})}
	return w.reports, nil
}

// report makes the kernel report an ended session; without a listener it is lost.
func (w *world) report(ended ...activity.Ended) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	select {
	case <-w.reports.closed:
	default:
		w.reports.ended <- ended
	}
}

// peer is the connected client while inUse.
var peer = netip.MustParseAddrPort("10.0.0.9:4711")

// leave ends the client's session.
func (w *world) leave() {
	w.with(func(w *world) {
		w.inUse = false
		w.ledger["app"] = activity.Database{Sessions: w.ledger["app"].Sessions + 1}
	})
	w.report(activity.Ended{Peer: peer, Received: 700, At: time.Now()})
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

func (w *world) ResumeBackups(context.Context) (kubernetes.Resumed, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.away {
		return kubernetes.Resumed{}, errAway
	}
	w.resumed++
	return kubernetes.Resumed{Changed: w.suspended + len(w.left), Left: w.left}, nil
}

func (w *world) Record(ctx context.Context, _ kubernetes.View, e kubernetes.Event, _ time.Time) error {
	w.mutex.Lock()
	takes, lost := w.eventTakes, w.eventsLost
	w.eventsLost = max(0, lost-1)
	w.mutex.Unlock()
	if !process.Pause(ctx, takes) || lost > 0 {
		return kubernetes.ErrAnswerLost
	}
	w.with(func(w *world) { w.events, w.messages = append(w.events, e.Reason), append(w.messages, e.Message) })
	return nil
}

func (w *world) Publish(status Status) {
	w.with(func(w *world) {
		if w.status = status; w.reasons == nil {
			w.reasons = map[idle.Reason]bool{}
		}
		w.reasons[status.Decision.Reason] = true
	})
}

func (w *world) Sampled(time.Duration, error) {}
func (w *world) Notified(postgres.Kind)       {}
func (w *world) Attempted(result sleep.Result, _ bool) {
	w.with(func(w *world) { w.results = append(w.results, result) })
}

// versions gives every view a new resourceVersion.
var versions atomic.Int64

// healthy is a Cluster whose primary is this pod, with a threshold of 30 seconds.
func healthy() kubernetes.View {
	return kubernetes.View{
		ResourceVersion: strconv.FormatInt(versions.Add(1), 10),
		UID:             "u", Name: "c", CurrentPrimary: "c-1", TargetPrimary: "c-1", Healthy: true, PluginListed: true,
		Instances: []string{"c-1"}, Ready: []string{"c-1"}, ApplicationDatabase: "app",
		Annotations: map[string]string{contract.AnnotationEnabled: "true", contract.AnnotationInactivityMinutes: "0.5"},
	}
}

// live runs a test with a loop in a synctest bubble, whose clock advances only while the test waits.
func live(t *testing.T, test func(*testing.T, *world, *Loop)) {
	t.Helper()
	liveAfter(t, nil, test)
}

// liveAfter does the same in a world that is prepared before the loop starts.
func liveAfter(t *testing.T, prepare func(*world), test func(*testing.T, *world, *Loop)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{view: healthy(), started: 7, ledger: activity.Ledger{"postgres": {}, "app": {}}, clientAddrs: monitor.NewClientAddrs()}
		w.instance = instance{world: w, postmaster: doze.Postmaster{Running: true, PID: 1}, ready: true, managed: true}
		if prepare != nil {
			prepare(w)
		}
		logger := slog.New(slog.NewTextHandler(w, nil))
		w.monitor = monitor.New(monitor.Parts{
			Sampler: w, Server: w, ClientAddrs: w.clientAddrs, Checkpoints: w, Observer: w, Logger: logger,
			OpenEvents: w.openReports,
			Listen: func(_ string, notify func(postgres.Notification), failed func(error)) monitor.Listener {
				w.with(func(w *world) { w.notify, w.failed = notify, failed })
				return w
			},
		})
		parts := Parts{
			Monitor: w.monitor, Kubernetes: w, Observer: w, Siblings: w, Marker: &w.marker, Pod: "c-1", PodUID: "pod-uid", Logger: logger,
			Counts: (*savedCounts)(w), OpenTerminator: w.openTerminator, Instance: &w.instance,
		}
		if w.instance.mayDoze {
			parts.Readiness, parts.Requests = &w.instance, &w.instance
		}
		loop := New(parts)
		w.loop = loop
		ctx, cancel := context.WithCancel(t.Context())
		w.stop = cancel
		done := make(chan struct{})
		go func() { defer close(done); loop.Run(ctx) }()
		test(t, w, loop)
		cancel()
		<-done
		w.with(func(w *world) {
			if w.connected || w.listening || w.terminators != 0 {
				t.Error("a session is open after the end")
			}
		})
	})
}

// wait advances the bubble's clock and lets everything settle.
func wait(d time.Duration) {
	time.Sleep(d) // the bubble's clock: no real time passes
	synctest.Wait()
}

// seen returns the Cluster as a watch would deliver it.
func (w *world) seen() kubernetes.View {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	v := w.view
	v.ResourceVersion = strconv.FormatInt(versions.Add(1), 10)
	return v
}
