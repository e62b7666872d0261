package wake

import "testing"

func TestController_countsServicesThatLeadToNoGateway(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		last := a.ports.Range.Last
		a.ports.Range.Last = a.ports.Range.First
		w.cluster(asleep)
		a.read()
		if got := a.Unrouted(orders); got != 1 {
			t.Errorf("with one port %d Services lead nowhere, want the other one", got)
		}
		a.ports.Range.Last = last
		a.read()
		if got := a.Unrouted(orders); got != 0 {
			t.Errorf("with ports %d Services lead nowhere", got)
		}
	})
}
