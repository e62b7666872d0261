package doze

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/process"
)

var errFake = errors.New("it failed")

// instance fakes PostgreSQL and its manager.
type instance struct {
	mutex       sync.Mutex
	running     Postmaster
	readErr     error
	accepting   bool
	acceptErr   error
	refusing    bool
	unavailable bool
	statusErr   error
	statusTakes time.Duration
	tried       int // connections to the socket
	asked       int // questions to the manager
	probed      int // probes of PostgreSQL
}

func (i *instance) accepts(context.Context) (bool, error) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	i.probed++
	return i.accepting && i.running.Running, i.acceptErr
}

func (i *instance) read() (Postmaster, error) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	return i.running, i.readErr
}

func (i *instance) refuses(context.Context) bool {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	i.tried++
	return i.refusing
}

func (i *instance) mightBeUnavailable(ctx context.Context) (bool, error) {
	process.Pause(ctx, i.statusTakes)
	i.mutex.Lock()
	defer i.mutex.Unlock()
	i.asked++
	return i.unavailable, i.statusErr
}

func (i *instance) observer() *Observer {
	return &Observer{accepts: i.accepts, read: i.read, refuses: i.refuses, stopping: i.mightBeUnavailable}
}

// change is a change of the instance some time after the start.
type change struct {
	after  time.Duration
	change func(*instance)
}

// runs is an instance on which a postmaster runs and accepts sessions.
func runs(i *instance) { i.running, i.accepting = first, true }

// waits runs one of the waits while the instance changes, and returns how long it took; it ends after an hour.
func waits(t *testing.T, i *instance, changes []change, wait func(context.Context, *Observer) error) (took time.Duration, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for _, c := range changes {
		time.AfterFunc(c.after, func() {
			i.mutex.Lock()
			defer i.mutex.Unlock()
			c.change(i)
		})
	}
	begun := time.Now()
	err = wait(ctx, i.observer())
	return time.Since(begun), err
}

const never = time.Hour

func TestAwaitStopped_endsOnceThePostmasterIsGone(t *testing.T) {
	t.Parallel()
	gone := func(i *instance) { i.running = none }
	for _, row := range []struct {
		rule    string
		changes []change
		least   time.Duration
		most    time.Duration
	}{
		{"it is gone already", []change{{0, gone}}, 0, fastPoll},
		{"it goes soon", []change{{110 * time.Millisecond, gone}}, 110 * time.Millisecond, 130 * time.Millisecond},
		{"it goes later", []change{{5010 * time.Millisecond, gone}}, 5010 * time.Millisecond, 5110 * time.Millisecond},
		{"it goes late", []change{{60010 * time.Millisecond, gone}}, 60010 * time.Millisecond, 61010 * time.Millisecond},
		{"it runs on", nil, never, never},
		{"the file cannot be read meanwhile", []change{
			{time.Second, func(i *instance) { i.running, i.readErr = none, errFake }}, {3 * time.Second, func(i *instance) { i.readErr = nil }},
		}, 3 * time.Second, 3100 * time.Millisecond},
		{"it was killed", []change{{10500 * time.Millisecond, func(i *instance) { i.refusing = true }}}, 11 * time.Second, 14 * time.Second},
		{"another takes its place, and goes", []change{
			{time.Second, func(i *instance) { i.running = second }}, {8 * time.Second, gone},
		}, 8 * time.Second, 8100 * time.Millisecond},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				i := &instance{}
				runs(i)
				took, err := waits(t, i, row.changes, func(ctx context.Context, o *Observer) error { return o.AwaitStopped(ctx) })
				if took < row.least || took > row.most || (err != nil) != (row.most == never) || err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("took %s, want %s to %s: %v", took, row.least, row.most, err)
				}
				if most := int(took/time.Second) + 1; i.tried > most {
					t.Errorf("connected %d times in %s", i.tried, took)
				}
			})
		})
	}
}

func TestAwaitServing_endsOnceAPostmasterServesThatWillStay(t *testing.T) {
	t.Parallel()
	const moment = 20 * time.Millisecond
	for _, row := range []struct {
		rule        string
		before      Postmaster
		make        func(*instance)
		changes     []change
		least, most time.Duration
	}{
		{"stopped before, and accepting", none, runs, nil, 0, moment},
		{"stopped before, and starting", none, func(i *instance) {}, []change{
			{50 * time.Millisecond, func(i *instance) { i.running = second }},
			{90 * time.Millisecond, func(i *instance) { i.accepting = true }},
		}, 90 * time.Millisecond, 90*time.Millisecond + moment},
		{"stopped before, and starting for long", none, func(i *instance) { i.running, i.acceptErr = second, errFake }, []change{
			{10 * time.Minute, func(i *instance) { i.accepting, i.acceptErr = true, nil }},
		}, 10 * time.Minute, 10*time.Minute + time.Second},
		{"stopped before, and nobody starts", none, func(i *instance) {}, nil, never, never},
		{"it accepts until it stops, and another starts", first, func(i *instance) { runs(i); i.unavailable = true }, []change{
			{2 * time.Second, func(i *instance) { i.accepting = false }},
			{3 * time.Second, func(i *instance) { i.running = none }},
			{3050 * time.Millisecond, func(i *instance) { i.running = second }},
			{3100 * time.Millisecond, func(i *instance) { i.accepting = true }},
		}, 3100 * time.Millisecond, 3100*time.Millisecond + moment},
		{"the gap between two postmasters is not seen", first, func(i *instance) { runs(i); i.statusErr = errFake }, []change{
			{2 * time.Second, func(i *instance) { i.running = second }},
		}, 2 * time.Second, 2*time.Second + moment},
		{"another runs already", first, func(i *instance) { runs(i); i.running = second }, nil, 0, moment},
		{"the fence was never obeyed", first, runs, nil, notStoppingFor, notStoppingFor + 2*askInterval},
		{"the fence was never obeyed, and the manager is slow", first, func(i *instance) { runs(i); i.statusTakes = 900 * time.Millisecond }, nil, notStoppingFor, notStoppingFor + 4*askInterval},
		{"the manager is silent, and PostgreSQL runs on", first, func(i *instance) { runs(i); i.statusErr = errFake }, nil, acceptingFor, acceptingFor + 2*askInterval},
		{"the manager is silent, and PostgreSQL accepts nobody", first, func(i *instance) { runs(i); i.statusErr, i.accepting = errFake, false }, nil, never, never},
		{"the manager is stopping it for long", first, func(i *instance) { runs(i); i.unavailable = true }, nil, never, never},
		{"the manager is silent at first", first, func(i *instance) { runs(i); i.statusErr = errFake }, []change{
			{20 * time.Second, func(i *instance) { i.statusErr = nil }},
		}, 20*time.Second + notStoppingFor, 20*time.Second + notStoppingFor + 2*askInterval},
		{"the manager obeys late", first, runs, []change{
			{24 * time.Second, func(i *instance) { i.unavailable = true }},
			{29 * time.Second, func(i *instance) { i.running = none }},
			{29100 * time.Millisecond, func(i *instance) { i.running = second }},
		}, 29100 * time.Millisecond, 29200*time.Millisecond + moment},
		{"the lock file cannot be read: nothing is proven", first, func(i *instance) { runs(i); i.readErr = errFake }, nil, never, never},
		{"a slow answer of the manager's delays nothing", first, func(i *instance) { runs(i); i.statusTakes = 2 * time.Second; i.statusErr = errFake }, []change{
			{500 * time.Millisecond, func(i *instance) { i.running = second }},
		}, 500 * time.Millisecond, 500*time.Millisecond + moment},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				i := &instance{}
				row.make(i)
				took, err := waits(t, i, row.changes, func(ctx context.Context, o *Observer) error { return o.AwaitServing(ctx, row.before) })
				if took < row.least || took > row.most || (err != nil) != (row.most == never) || err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("took %s, want %s to %s: %v", took, row.least, row.most, err)
				}
				if i.readErr != nil && !errors.Is(err, errFake) {
					t.Errorf("the lock file's error is not told: %v", err)
				}
				if most := int(took/askInterval) + 1; i.asked > most || !row.before.Running && i.asked != 0 {
					t.Errorf("asked %d times in %s", i.asked, took)
				}
			})
		})
	}
}

// Each probe of a PostgreSQL that recovers is a line in its log.
func TestAwaitServing_probesALongRecoveryRarely(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := &instance{running: first}
		_, err := waits(t, i, nil, func(ctx context.Context, o *Observer) error { return o.AwaitServing(ctx, none) })
		if least, most := int(never/time.Second), int(never/time.Second)+150; err == nil || i.probed < least-150 || i.probed > most {
			t.Errorf("%d probes in an hour, want about one each second: %v", i.probed, err)
		}
	})
}

func TestAwaitStartFailed_endsOnceNoneHasRunForAMinute(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule    string
		make    func(*instance)
		changes []change
		took    time.Duration
	}{
		{"nobody starts it", func(*instance) {}, nil, time.Minute},
		{"it starts late", func(*instance) {}, []change{{59500 * time.Millisecond, func(i *instance) { i.running = first }}}, never},
		{"it starts and fails", func(*instance) {}, []change{
			{29500 * time.Millisecond, func(i *instance) { i.running = first }}, {30500 * time.Millisecond, func(i *instance) { i.running = none }},
		}, 90 * time.Second},
		{"it was killed", func(i *instance) { i.running, i.refusing = first, true }, nil, time.Minute},
		{"the lock file cannot be read", func(i *instance) { i.readErr = errFake }, nil, never},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				i := &instance{}
				row.make(i)
				took, err := waits(t, i, row.changes, func(ctx context.Context, o *Observer) error { return o.AwaitStartFailed(ctx) })
				if took != row.took || (err != nil) != (row.took == never) {
					t.Errorf("took %s, want %s: %v", took, row.took, err)
				}
			})
		})
	}
}

func TestStopping_isNotKnownWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule            string
		make            *instance
		stopping, known bool
	}{
		{"it says so", &instance{unavailable: true}, true, true},
		{"it says that it is not", &instance{}, false, true},
		{"it does not answer", &instance{statusErr: errFake}, false, false},
	} {
		if stopping, known := row.make.observer().Stopping(t.Context()); stopping != row.stopping || known != row.known {
			t.Errorf("%s: stopping %t, known %t", row.rule, stopping, known)
		}
	}
}
