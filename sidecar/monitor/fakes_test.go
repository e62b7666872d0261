package monitor

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
	"github.com/cnpg-i/scale-to-zero/sidecar/sockets"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errFake = errors.New("it failed")

// instance fakes all dependencies of a monitor.
type instance struct {
	mutex sync.Mutex

	// The server.
	sample       postgres.Sample // the result of a sample, except its times
	sampleErr    error
	shuttingDown bool
	probeErr     error
	connected    bool // whether the sampler's session is open
	probes       int
	sampling     func() // runs once in the next sample, before it is read
	sampled      func() // runs once in the next sample, after it was read

	// The kernel.
	openErr, proofErr error
	proven            []activity.Ended // reported during the proof
	source            *source
	opened            int
	open              []activity.Open // sessions in its list
	listErr           error

	// The control channel.
	listener *listener

	kept     *Checkpoint
	saves    int
	saveErr  error
	verdicts []activity.Verdict
	kinds    []postgres.Kind
	addrs    *ClientAddrs
}

func (i *instance) Sample(_ context.Context, rules activity.Rules) (postgres.Sample, error) {
	for _, hook := range []*func(){&i.sampling, &i.sampled} {
		if *hook != nil {
			run := *hook
			*hook = nil
			run()
		}
	}
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if i.sampleErr != nil || i.shuttingDown && !i.connected {
		return postgres.Sample{}, errFake
	}
	i.connected = true
	sample := i.sample
	sample.Began, sample.Ended, sample.Ledger = time.Now(), time.Now(), maps.Clone(i.sample.Ledger)
	return sample, nil
}

func (i *instance) Close() { i.with(func() { i.connected = false }) }

func (i *instance) ShuttingDown(context.Context) (bool, error) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	i.probes++
	return i.shuttingDown, i.probeErr
}

func (i *instance) with(change func()) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	change()
}

func (i *instance) Save(c Checkpoint) error {
	i.with(func() { i.kept, i.saves = &c, i.saves+1 })
	return i.saveErr
}

func (i *instance) Load() (Checkpoint, error) {
	if i.kept == nil {
		return Checkpoint{}, fs.ErrNotExist
	}
	return *i.kept, nil
}

func (i *instance) Sampled(time.Duration, error)    {}
func (i *instance) Notified(kind postgres.Kind)     { i.kinds = append(i.kinds, kind) }
func (i *instance) Judged(verdict activity.Verdict) { i.verdicts = append(i.verdicts, verdict) }

// source is a kernel that reports what the test gives it.
type source struct {
	instance *instance
	reports  chan report
	unread   chan struct{} // signals that reports has something
	closed   chan struct{}
	stalled  bool // suppresses the signal
}

type report struct {
	ended []activity.Ended
	err   error
}

func (i *instance) openEvents() (SocketEvents, error) {
	i.opened++
	if i.openErr != nil {
		return nil, i.openErr
	}
	i.source = &source{instance: i, reports: make(chan report, 100), unread: make(chan struct{}, 1), closed: make(chan struct{})}
	return i.source, nil
}

func (s *source) Prove(context.Context) ([]activity.Ended, error) {
	return s.instance.proven, s.instance.proofErr
}

func (s *source) Wait() error {
	select {
	case <-s.unread:
		return nil
	case <-s.closed:
		return errFake
	}
}

func (s *source) Arrived() (ended []activity.Ended, err error) {
	for err == nil {
		select {
		case r := <-s.reports:
			ended, err = append(ended, r.ended...), r.err
		default:
			return ended, nil
		}
	}
	return ended, err
}

func (s *source) Open() ([]activity.Open, error) {
	s.instance.mutex.Lock()
	defer s.instance.mutex.Unlock()
	return s.instance.open, s.instance.listErr
}

func (s *source) Close() { close(s.closed) }

// report makes the kernel report, and waits until the monitor has the event to handle.
func (i *instance) report(err error, ended ...activity.Ended) {
	i.source.reports <- report{ended, err}
	if !i.source.stalled {
		select {
		case i.source.unread <- struct{}{}:
		default:
		}
	}
	synctest.Wait()
}

// listener is a fake of the control channel's listener.
type listener struct {
	database string
	notify   func(postgres.Notification)
	failed   func(error)
	running  bool
	mutex    sync.Mutex
}

func (l *listener) set(running bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.running = running
}

func (l *listener) Run(ctx context.Context) {
	l.set(true)
	<-ctx.Done()
	l.set(false)
}

func (l *listener) Connected() bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.running
}

// client is an ended session of a client.
func client(at time.Time) activity.Ended {
	return activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.9:4711"), Received: 700, At: at}
}

// permitted are settings that watch everything but the control channel.
var permitted = Settings{Connect: true}

// watched runs a test with a monitor of an idle instance, in a synctest bubble.
func watched(t *testing.T, test func(*testing.T, *instance, *Monitor)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		i := &instance{addrs: NewClientAddrs()}
		i.sample.Ledger, i.sample.Started = activity.Ledger{"postgres": {}, "app": {}}, 7
		m := New(Parts{
			Sampler: i, Server: i, ClientAddrs: i.addrs, Checkpoints: i, Observer: i, Logger: slog.New(slog.DiscardHandler),
			OpenEvents: i.openEvents,
			Listen: func(database string, notify func(postgres.Notification), failed func(error)) Listener {
				i.listener = &listener{database: database, notify: notify, failed: failed}
				return i.listener
			},
		})
		defer m.Close()
		m.Configure(permitted)
		test(t, i, m)
	})
}

// handleAll handles what has arrived.
func handleAll(m *Monitor) Change {
	synctest.Wait()
	return m.handleWaiting()
}

// unsupported is the error of a kernel without socket events.
var unsupported = sockets.ErrUnsupported
