package monitor

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

func TestHandle_notifications(t *testing.T) {
	t.Parallel()
	now := func() time.Time { return time.Now() }
	for _, row := range []struct {
		rule  string
		sent  []postgres.Notification
		used  bool
		until *time.Duration // keep-awake deadline; 0: released
		sleep bool           // a request to sleep
	}{
		{"activity is a use", []postgres.Notification{{Kind: postgres.KindActivity}}, true, nil, false},
		{"keep-awake is a use and asks to stay awake", []postgres.Notification{{Kind: postgres.KindKeepAwake, For: time.Hour}}, true, new(time.Hour), false},
		{"of two the longer holds", []postgres.Notification{
			{Kind: postgres.KindKeepAwake, For: time.Hour}, {Kind: postgres.KindKeepAwake, For: time.Minute},
		}, true, new(time.Hour), false},
		{"one that is too long is cut", []postgres.Notification{{Kind: postgres.KindKeepAwake, For: 2 * contract.MaxKeepAwake}}, true, new(contract.LongestKeepAwake), false},
		{"release takes it away", []postgres.Notification{
			{Kind: postgres.KindKeepAwake, For: time.Hour}, {Kind: postgres.KindRelease},
		}, true, new(time.Duration(0)), false},
		{"keep-awake after it holds", []postgres.Notification{
			{Kind: postgres.KindRelease}, {Kind: postgres.KindKeepAwake, For: time.Minute},
		}, true, new(time.Minute), false},
		{"hibernate asks for sleep", []postgres.Notification{{Kind: postgres.KindHibernate}}, false, nil, true},
		{"what is not understood asks for nothing", []postgres.Notification{{Kind: postgres.KindMalformed, Err: errFake}}, false, nil, false},
		{"the first connection has missed nothing", []postgres.Notification{{Kind: postgres.KindBacklog}}, false, nil, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, i *instance, m *Monitor) {
				m.Configure(listening)
				_, _ = m.Sample(t.Context())
				for _, n := range row.sent {
					n.At = now()
					i.listener.notify(n)
				}
				change := handleAll(m)
				if got := !change.Used.IsZero(); got != row.used {
					t.Errorf("used: %t, want %t", got, row.used)
				}
				switch {
				case (change.KeepAwake == nil) != (row.until == nil):
					t.Errorf("keep-awake: %+v", change.KeepAwake)
				case row.until != nil && *row.until == 0 && !change.KeepAwake.Until.IsZero():
					t.Errorf("it is not released: %+v", change.KeepAwake)
				case row.until != nil && *row.until != 0 && !change.KeepAwake.Until.Equal(now().Add(*row.until)):
					t.Errorf("keep-awake: %+v, want %s", change.KeepAwake, *row.until)
				}
				if len(i.kinds) != len(row.sent) {
					t.Errorf("%d notifications are counted", len(i.kinds))
				}
				seen, _ := m.Sample(t.Context())
				if got := !seen.Requested.IsZero(); got != row.sleep || seen.Used != change.Used {
					t.Errorf("sleep is asked for: %t, want %t; used %s", got, row.sleep, seen.Used)
				}
				if seen, _ = m.Sample(t.Context()); !seen.Requested.IsZero() || !seen.Used.IsZero() {
					t.Errorf("it holds for another sample: %+v", seen)
				}
			})
		})
	}
}

func TestHandle_aSecondConnectionMayHaveMissedActivity(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		m.Configure(listening)
		_, _ = m.Sample(t.Context())
		for _, used := range []bool{false, true} {
			i.listener.notify(postgres.Notification{Kind: postgres.KindBacklog, At: time.Now()})
			if change := handleAll(m); change.Used.IsZero() == used {
				t.Errorf("%+v, want a use: %t", change, used)
			}
		}
	})
}

func TestHandle_losesNoNotificationWhereTheQueueIsFull(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		m.Configure(listening)
		_, _ = m.Sample(t.Context())
		for range 3 * eventsAtOnce {
			i.listener.notify(postgres.Notification{Kind: postgres.KindMalformed, At: time.Now(), Err: errFake})
		}
		i.listener.notify(postgres.Notification{Kind: postgres.KindKeepAwake, For: time.Hour, At: time.Now()})
		i.listener.notify(postgres.Notification{Kind: postgres.KindRelease, At: time.Now()})
		if change := m.Handle(<-m.Events()); change.KeepAwake == nil || len(i.kinds) != 3*eventsAtOnce+2 {
			t.Errorf("%+v, %d counted", change, len(i.kinds))
		}
	})
}

func TestSample_takesInWhatArrivesMeanwhile(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		m.Configure(listening)
		_, _ = m.Sample(t.Context())
		i.sampled = func() {
			i.listener.notify(postgres.Notification{Kind: postgres.KindKeepAwake, For: time.Hour, At: time.Now()})
			i.listener.failed(errFake)
			i.report(nil, client(time.Now()))
		}
		seen, change := m.Sample(t.Context())
		if seen.Used.IsZero() || change.KeepAwake == nil || change.ListenFailure == nil || !m.NextSample().IsZero() {
			t.Errorf("%+v, %+v, the next sample at %s", seen, change, m.NextSample())
		}
	})
}

func TestSample_movesTheListenerToTheDatabaseOfTheSettings(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		_, _ = m.Sample(t.Context())
		if i.listener != nil {
			t.Error("without a database it listens")
		}
		m.Configure(listening)
		_, _ = m.Sample(t.Context())
		synctest.Wait()
		first := i.listener
		if _, _ = m.Sample(t.Context()); first == nil || i.listener != first || !first.Connected() || !m.Status().ListenerConnected {
			t.Error("it does not go on listening")
		}
		other := listening
		other.Database = "other"
		m.Configure(other)
		_, _ = m.Sample(t.Context())
		synctest.Wait()
		if first.Connected() || i.listener.database != "other" || !i.listener.Connected() {
			t.Error("it does not listen in the other database alone")
		}
	})
}

func TestHandle_publishesWhetherItListens(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		m.Configure(listening)
		_, _ = m.Sample(t.Context())
		synctest.Wait()
		i.listener.set(false)
		i.listener.failed(errFake)
		if change := handleAll(m); change.ListenFailure == nil || m.Status().ListenerConnected {
			t.Errorf("%+v, connected %t", change, m.Status().ListenerConnected)
		}
	})
}

// Every role may send what is malformed, as fast as it likes.
func TestHandle_logsWhatIsMalformedOnceAMinute(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		var log strings.Builder
		m.channel.logger = slog.New(slog.NewTextHandler(&log, nil))
		m.Configure(listening)
		_, _ = m.Sample(t.Context())
		for range 180 {
			i.listener.notify(postgres.Notification{Kind: postgres.KindMalformed, Err: errFake, At: time.Now()})
			handleAll(m)
			time.Sleep(time.Second)
		}
		if lines := strings.Count(log.String(), "invalid notification"); lines != 3 || len(i.kinds) != 180 {
			t.Errorf("%d lines for %d notifications in three minutes", lines, len(i.kinds))
		}
	})
}
