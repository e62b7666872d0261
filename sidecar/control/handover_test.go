package control

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/introduction"
)

func TestHandover(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		make   func(*world)
		asleep bool
		reason idle.Reason
	}{
		{"the gateway acknowledges: asleep", func(w *world) { w.gatewayTakes = 3 * time.Second }, true, ""},
		{"no gateway: awake, and nothing is suspended", func(w *world) { w.gatewayAway = true }, false, idle.ReasonGatewayUnavailable},
		{"one that takes too long is none", func(w *world) { w.gatewayTakes = 25 * time.Second }, false, idle.ReasonGatewayUnavailable},
		{"an acknowledgement of something else is none", func(w *world) {
			w.gatewayAway = true
			w.view.Annotations[idle.KeyGatewayReady] = "another-pod 2026-01-01T00:00:00Z"
		}, false, idle.ReasonGatewayUnavailable},
		{"wake=manual needs none", func(w *world) {
			w.gatewayAway = true
			w.view.Annotations[idle.KeyWake] = "manual"
		}, true, ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, row.make, func(t *testing.T, w *world, loop *Loop) {
				loop.See(w.seen())
				wait(30*time.Second + acknowledgementTakes + 2*time.Second)
				expect(t, w, "asleep", row.asleep, asleep)
				if row.asleep {
					return
				}
				expect(t, w, "reason", row.reason, func(w *world) idle.Reason { return w.status.Decision.Reason })
				expect(t, w, "suspended", 0, func(w *world) int { return w.suspended })
				expect(t, w, "announced", "", func(w *world) string { return w.view.Annotations[idle.KeyAnnounced] })
				wait(10 * time.Minute)
				expect(t, w, "asleep later", false, asleep)
				w.with(func(w *world) { w.gatewayAway, w.gatewayTakes = false, time.Second })
				wait(6 * time.Minute)
				expect(t, w, "asleep once there is a gateway", true, asleep)
			})
		})
	}
}

func TestWhileTheGatewayIsAwaited(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		then func(*world, *Loop)
		want func(*world) bool
	}{
		{"a use ends the attempt at once", func(w *world, _ *Loop) {
			w.report(activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:1"), Sent: 700, At: time.Now()})
		}, func(w *world) bool {
			return !asleep(w) && w.view.Annotations[idle.KeyAnnounced] == "" && w.suspended == 0
		}},
		{"a shutdown is noticed within two seconds", func(w *world, _ *Loop) {
			w.with(func(w *world) { w.shuttingDown = true })
		}, func(w *world) bool { return !asleep(w) && !w.connected }},
		{"an unhealthy cluster ends the attempt, and the sessions", func(w *world, loop *Loop) {
			v := w.seen()
			v.Healthy = false
			loop.See(v)
		}, func(w *world) bool { return !asleep(w) && !w.connected && w.suspended == 0 }},
		{"wake=manual ends the wait", func(w *world, loop *Loop) {
			w.with(func(w *world) { w.view.Annotations[idle.KeyWake] = "manual" })
			loop.See(w.seen())
		}, asleep},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) { w.gatewayAway = true }, func(t *testing.T, w *world, loop *Loop) {
				loop.See(w.seen())
				wait(35 * time.Second)
				expect(t, w, "announced", true, func(w *world) bool { return w.view.Annotations[idle.KeyAnnounced] != "" })
				row.then(w, loop)
				wait(2 * time.Second)
				expect(t, w, "as it should be", true, row.want)
			})
		})
	}
}

// A session that the gateway passes on is judged by its own client.
func TestIntroducedSessions(t *testing.T) {
	t.Parallel()
	gateway, monitor := netip.MustParseAddrPort("10.0.0.66:40000"), netip.MustParseAddrPort("10.9.0.1:5000")
	for _, row := range []struct {
		rule       string
		introduced bool
		used       bool
	}{
		{"one that was introduced is ignored as its client is", true, false},
		{"one that was not is the gateway's, and counts", false, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			book := introduction.NewBook()
			if row.introduced {
				book.Add(gateway.Addr(), introduction.Introduction{Port: gateway.Port(), Peer: monitor})
			}
			prepare := func(w *world) {
				w.view.Annotations[idle.KeyIgnore] = "client=10.9.0.0/16"
				w.introductions = book
			}
			liveAfter(t, prepare, func(t *testing.T, w *world, loop *Loop) {
				loop.See(w.seen())
				wait(20 * time.Second)
				w.report(activity.Ended{Peer: gateway, Sent: 700, At: time.Now()})
				wait(11 * time.Second)
				expect(t, w, "asleep", !row.used, asleep)
			})
		})
	}
}
