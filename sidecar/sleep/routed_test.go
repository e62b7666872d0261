package sleep

import "github.com/cnpg-i/scale-to-zero/plugin/wake/plan"

// client is a client whose use counts, and whether a sample has found it.
type client uint8

const (
	// unasked is that of a world in which a sample may find anything.
	unasked client = iota
	nobody
	unsampled
	sampled
)

// routed is the world of a cluster that hibernates and has a client, and of the plugin that routes it. The plugin decides by
// [plan.Decide], on a view of the Cluster that lags, and the deadline of an announcement passes. Nobody else changes the Cluster.
type routed struct {
	world
	// seen is what the plugin has seen of the Cluster. Its patches demand the resourceVersion of that.
	seen  View
	patch pluginPatch
	// led says that the cluster's Services lead to the gateway, passed and olderPassed that the deadlines of the newest announcement
	// and the older one have passed.
	led, passed, olderPassed bool
}

// pluginPatch is a patch of the plugin that is under way.
type pluginPatch uint8

const (
	noPatch pluginPatch = iota
	acknowledgement
	revocation
)

// key packs the world.
func (r *routed) key() key {
	p := &packer{}
	r.pack(p)
	p.announcement(r.seen.Announced)
	p.announcement(r.seen.Acknowledged)
	p.flags(r.seen.HibernationOn, r.led, r.passed, r.olderPassed)
	p.number(int(r.patch), 3)
	return p.key
}

// visible is what the plugin would see now.
func (r *routed) visible() View {
	v := r.view(true)
	return View{Announced: v.Announced, Acknowledged: v.Acknowledged, HibernationOn: v.HibernationOn, OwnsHibernation: v.OwnsHibernation}
}

// decided is what the plugin decides now.
func (r *routed) decided() plan.Plan {
	state := plan.State{
		Cluster:  planned(r.seen),
		Services: []plan.Service{{UID: "rw", Led: r.led, Ready: r.operator == untouched, Direct: r.operator == untouched}},
	}
	if r.seen.Announced == newest && r.passed || r.seen.Announced == older && r.olderPassed {
		return plan.Decide(state, afterDeadline)
	}
	return plan.Decide(state, beforeDeadline)
}

// next appends all that can happen next.
func (r *routed) next(all []move[routed]) []move[routed] {
	add := func(fair bool, what, happens string, make func(*routed)) {
		all = append(all, move[routed]{name{what, happens}, fair, make})
	}
	inWorld := func(fair bool, what, happens string, make func(*world)) {
		add(fair, what, happens, func(r *routed) {
			before := r.world
			make(&r.world)
			r.follow(before)
		})
	}
	if r.alive() {
		machineMoves(&r.world, inWorld)
		requestMoves(&r.world, inWorld)
	}
	lateMoves(&r.world, inWorld)
	operatorMoves(&r.world, inWorld)
	r.pluginMoves(add, inWorld)
	r.clientMoves(inWorld)
	return all
}

// follow keeps what the plugin knows in step with the world.
func (r *routed) follow(before world) {
	if r.changes != before.changes {
		r.patch = noPatch // it can only fail
	}
	r.changes = 0
	switch {
	case before.announced == newest && r.announced == older:
		if r.seen.Announced == older { // two ago
			r.seen.Announced, r.seen.Acknowledged = "", ""
		}
		r.outdate()
	case before.announced != newest && r.announced == newest:
		r.outdate()
	}
	if !before.on && r.on {
		r.switched()
	}
}

// outdate makes what the plugin has seen of the newest announcement older.
func (r *routed) outdate() {
	r.olderPassed, r.passed = r.passed, false
	if r.seen.Announced == newest {
		r.seen.Announced = older
	}
	if r.seen.Acknowledged == newest {
		r.seen.Acknowledged = older
	}
}

// pluginMoves are what the plugin does, and when the deadlines pass.
func (r *routed) pluginMoves(add func(bool, string, string, func(*routed)), inWorld adder) {
	current := r.seen == r.visible()
	if !current {
		add(true, "the plugin's watch", " brings the newest state", func(r *routed) { r.seen = r.visible() })
	}
	decided := r.decided()
	switch wanted := len(decided.Lead) != 0; {
	case wanted && !r.led:
		add(true, "the Services", " lead to the gateway", func(r *routed) { r.led = true })
	case !wanted && r.led:
		add(true, "the Services", " lead to the instance alone", func(r *routed) { r.led = false })
	case current && r.patch == noPatch && decided.Acknowledge != "" && r.led:
		add(true, "the plugin", " sends its acknowledgement", func(r *routed) { r.patch = acknowledgement })
	case current && r.patch == noPatch && decided.Revoke:
		add(true, "the plugin", " sends its revocation", func(r *routed) { r.patch = revocation })
	}
	switch r.patch {
	case noPatch:
	case acknowledgement:
		inWorld(true, "the gateway", " acknowledges", func(w *world) { w.acknowledged = w.announced; w.wrote() })
	case revocation:
		inWorld(true, "the acknowledgement", " is revoked", func(w *world) { w.acknowledged = ""; w.wrote() })
	}
	if r.patch != noPatch {
		add(true, "the plugin's patch", " is lost", func(r *routed) { r.patch = noPatch })
	}
	if r.on && r.operator == gone && r.led {
		inWorld(true, "a client comes,", " and the gateway wakes the cluster", func(w *world) { w.on, w.ours = false, false; w.wrote() })
	}
	// What these leave out is in "Time" in doc.go.
	if _, runs := r.machine.Timers()[TimerExpiry]; r.announced == newest && !r.passed && !runs && (r.acknowledged == "" || r.seen.Acknowledged == r.acknowledged) {
		add(true, "the deadline", " of the newest announcement passes", func(r *routed) { r.passed = true })
	}
	if r.announced == older && !r.olderPassed && (r.acknowledged == "" || r.seen.Acknowledged == r.acknowledged) {
		add(true, "the deadline", " of the older announcement passes", func(r *routed) { r.olderPassed = true })
	}
}

// clientMoves are a client that comes and leaves. Asleep, it comes to the gateway: see pluginMoves.
func (r *routed) clientMoves(inWorld adder) {
	switch {
	case r.operator != untouched:
	case r.client == nobody:
		inWorld(false, "a client", " comes", func(w *world) { w.client = unsampled })
	default:
		inWorld(true, "the client", " leaves", func(w *world) { w.client = nobody })
	}
}

// switched asserts what must hold when hibernation is turned on.
func (r *routed) switched() {
	if r.client == sampled {
		r.violate("switched on although the last sample found a client")
	}
}

// check asserts what must hold in every state.
func (r *routed) check() {
	r.world.check()
	if (r.on || r.operator != untouched) && !r.led {
		r.violate("the cluster sleeps, and its Services do not lead to the gateway")
	}
}

// settled reports whether the state is one to stay in.
func (r *routed) settled() bool { return r.world.settled() && r.led == r.on && r.patch == noPatch }
