package wake

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	ctrl "sigs.k8s.io/controller-runtime"
)

func TestProbes_tellTheDead(t *testing.T) {
	t.Parallel()
	const answer, silence = true, false
	for _, row := range []struct {
		rule    string
		answers []bool // each began a second after the one before it, and took that second
		silence time.Duration
		want    bool
	}{
		{"three without an answer, over three seconds", []bool{answer, silence, silence, silence}, silentFor, true},
		{"two are too few", []bool{answer, silence, silence}, silentFor, false},
		{"an answer in between begins anew", []bool{answer, silence, silence, answer, silence}, silentFor, false},
		{"who has never answered is not judged", []bool{silence, silence, silence, silence}, silentFor, false},
		{"who yields waits longer", []bool{answer, silence, silence, silence}, silentFor + yieldFor, false},
		{"and not for ever", []bool{answer, silence, silence, silence, silence, silence}, silentFor + yieldFor, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			began := time.Unix(0, 0)
			var seen probes
			for _, answered := range row.answers {
				seen = seen.after(answered, began)
				began = began.Add(time.Second)
			}
			if got := seen.dead(row.silence, began); got != row.want {
				t.Errorf("dead: %t, want %t", got, row.want)
			}
		})
	}
	t.Run("refusals that come at once take as long", func(t *testing.T) {
		t.Parallel()
		now := time.Unix(0, 0)
		seen := probes{answered: true}.after(silence, now).after(silence, now).after(silence, now)
		if seen.dead(silentFor, now.Add(silentFor-1)) || !seen.dead(silentFor, now.Add(silentFor)) {
			t.Error("they are judged by their number alone")
		}
	})
}

// probe has the replica probe the others until the test ends, and look at the cluster whenever one is taken for dead.
func (r *replica) probe() {
	r.world.t.Helper()
	r.world.mutex.Lock()
	r.network.probes = true
	r.world.mutex.Unlock()
	ctx, cancel := context.WithCancel(r.world.t.Context())
	var probing sync.WaitGroup
	probing.Go(func() { r.ProbePeers(ctx) })
	r.world.t.Cleanup(func() {
		cancel()
		probing.Wait()
	})
	synctest.Wait()
}

// judged reports whether a replica was taken for dead since it was last asked.
func (r *replica) judged() bool {
	select {
	case <-r.silent:
		return true
	default:
		return false
	}
}

func TestProbePeers_silence(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.cluster(asleep)
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
		a.read()
		b.read()
		a.probe()
		pass(t, time.Minute)
		w.wrote()
		w.silence("10.1.0.2")
		pass(t, silentFor)
		a.read()
		w.wants("a moment's silence takes nothing away", toBoth)
		pass(t, probeEvery)
		if !a.judged() {
			t.Error("no cluster is looked at for a replica that does not answer")
		}
		a.read()
		w.wants("what leads to a replica that does not answer goes, though the kubelet's word on it still stands", toA)
		w.wantsWritten("each slice once", "delete EndpointSlice", "delete EndpointSlice")

		pass(t, probeEvery) // it leads nobody meanwhile
		b.read()
		pass(t, time.Minute)
		a.read()
		w.wants("one that makes its slices again lives, reached or not", toBoth)
		w.wantsWritten("nobody fights", "create EndpointSlice", "create EndpointSlice")
		if a.judged() {
			t.Error("the clusters are looked at again, for nothing")
		}

		w.silence()
		pass(t, probeEvery)
		w.silence("10.1.0.2")
		pass(t, silentFor+probeEvery)
		a.read()
		w.wants("once it has answered it is given twice as long", toBoth)
		pass(t, silentFor)
		a.read()
		w.wants("and is judged again", toA)
	})
}

// A replica without slices is not probed, so earlier failures say nothing about the time since.
func TestProbePeers_aSilenceBeginsWithAProbe(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.cluster(asleep)
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
		a.read()
		b.read()
		a.probe()
		pass(t, time.Minute)
		w.silence("10.1.0.2")
		pass(t, 2*probeEvery)
		w.cluster(awake)
		w.endpoint("orders-rw", true)
		w.endpoint("orders-r", true)
		a.read()
		b.read()
		w.wants("nothing leads anywhere", nowhere)
		w.silence()
		pass(t, time.Minute)
		w.cluster(asleep)
		w.endpoint("orders-rw", false)
		w.endpoint("orders-r", false)
		a.read()
		b.read()
		w.silence("10.1.0.2")
		pass(t, 2*probeEvery)
		if a.judged() {
			t.Error("a moment's silence is enough")
		}
	})
}

func TestProbePeers_judgesNobodyWhileItCannotReachItself(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.cluster(asleep)
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
		a.read()
		b.read()
		a.probe()
		b.probe()
		pass(t, time.Second)
		w.disturb("a", "")
		pass(t, time.Minute)
		if a.judged() {
			t.Error("a replica that gets no answer from itself judges another")
		}
		a.read()
		w.wants("nothing is removed", toBoth)
	})
}

func TestProbePeers_aReplicaThatTheAPIServerDoesNotAnswer(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.cluster(asleep)
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
		a.read()
		b.read()
		a.probe()
		b.probe()
		pass(t, time.Second)
		w.disturb("", "b")
		pass(t, staleAfter-time.Second)
		if b.Stale() || a.judged() {
			t.Error("a short silence of the API server has a consequence")
		}
		pass(t, time.Second+silentFor+yieldFor+2*probeEvery)
		if !b.Stale() || a.Stale() {
			t.Errorf("stale: a %t, b %t", a.Stale(), b.Stale())
		}
		if b.judged() {
			t.Error("who sees nothing judges another")
		}
		a.read()
		w.wants("its clients are led to the replica that is answered", toA)
	})
}

// A replica whose informers get no updates still has slices for a cluster that has been woken.
func TestController_removesWhatNoPlanWants(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.cluster(asleep)
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
		a.read()
		b.read()
		w.cluster(awake)
		for _, service := range []string{"orders-r", "orders-rw"} {
			w.endpoint(service, true)
		}
		again := a.read()
		w.wants("its own slices go at once", map[string][]string{"b": {"orders-r", "orders-rw"}})
		if again <= 0 || again > unwantedFor {
			t.Errorf("the next look is in %s", again)
		}
		pass(t, unwantedFor-time.Second)
		a.read()
		w.wants("the other replica is given time", map[string][]string{"b": {"orders-r", "orders-rw"}})
		pass(t, time.Second)
		w.disturb("", "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := a.Reconcile(ctx, ctrl.Request{NamespacedName: orders}); err == nil {
			t.Error("a replica whose plan may be old judges another")
		}
		w.disturb("", "")
		a.read()
		w.wants("then they go", nowhere)
	})
}

func TestSweep_forgetsSlicesThatTheirReplicaRemoved(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.cluster(asleep)
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
		a.read()
		b.read()
		w.cluster(awake)
		for _, service := range []string{"orders-r", "orders-rw"} {
			w.endpoint(service, true)
		}
		a.read()
		if got := a.marked(); got != 2 {
			t.Fatalf("%d slices of the other replica are marked, want 2", got)
		}
		b.read()
		w.wants("each has removed its own", nowhere)
		if _, err := a.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := a.marked(); got != 0 {
			t.Errorf("%d slices that are gone stay marked", got)
		}
	})
}

// marked returns how many slices of other replicas are to go.
func (r *replica) marked() int { return len(r.condemned.Keys()) }

func TestProbePeers_judgesNobodyWhomItNeverReached(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.cluster(asleep)
		w.silence("10.1.0.2")
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
		a.read()
		b.read()
		a.probe()
		pass(t, time.Minute)
		a.read()
		w.wants("a network that lets no probe through says nothing", toBoth)
	})
}

func TestProbePeers_leavesAServiceItsLastSlice(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.cluster(asleep)
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
		b.read()
		a.probe()
		pass(t, time.Second)
		w.silence("10.1.0.2")
		pass(t, silentFor+probeEvery)
		w.wrote()
		w.pod("a", corev1.ConditionFalse)
		a.read()
		w.wantsWritten("who is not ready does not judge")
		w.pod("a", corev1.ConditionTrue)
		a.read()
		w.wants("first it leads the clients itself", toBoth)
		a.read()
		w.wants("then it removes what leads to the other", toA)
	})
}

func TestProbePeers_awake(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.cluster(asleep)
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
		a.read()
		b.read()
		a.probe()
		pass(t, time.Second)
		w.cluster(awake)
		w.endpoint("orders-rw", true)
		w.endpoint("orders-r", true)
		a.read()
		w.silence("10.1.0.2")
		pass(t, silentFor+probeEvery)
		a.read()
		w.wants("a Service that leads to its instances needs none of ours", nowhere)
	})
}

// Two replicas that live and do not reach each other: each removes what leads to the other once, and no Service is ever without.
func TestProbePeers_twoThatDoNotReachEachOther(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.cluster(asleep)
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
		both := []*replica{a, b}
		for _, r := range both {
			r.read()
			r.probe()
		}
		pass(t, time.Second)
		w.wrote()
		w.silence("10.1.0.1", "10.1.0.2")
		for range 100 {
			pass(t, 250*time.Millisecond)
			for _, r := range both {
				r.read()
				led := map[string]bool{}
				for _, services := range w.routed() {
					for _, service := range services {
						led[service] = true
					}
				}
				if !led["orders-rw"] || !led["orders-r"] {
					t.Fatalf("a Service leads nowhere: %v", w.routed())
				}
			}
		}
		w.wants("in the end both lead the clients", toBoth)
		const made, removed = "create EndpointSlice", "delete EndpointSlice"
		w.wantsWritten("each slice goes once and comes again", made, made, made, made, removed, removed, removed, removed)
	})
}

func TestProbePeers_bothFamilies(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.dual()
		w.cluster(asleep)
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2", "fd00:1::2")
		a.read()
		b.read()
		a.probe()
		pass(t, time.Second)
		w.silence("10.1.0.2")
		pass(t, silentFor+probeEvery)
		a.read()
		var all discoveryv1.EndpointSliceList
		if err := w.api.List(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		left := map[discoveryv1.AddressType]int{}
		for _, slice := range all.Items {
			left[slice.AddressType]++
		}
		if left[discoveryv1.AddressTypeIPv4] != 2 || left[discoveryv1.AddressTypeIPv6] != 2 {
			t.Errorf("slices that are left: %v, want those of the family that the prober has not", left)
		}
	})
}
