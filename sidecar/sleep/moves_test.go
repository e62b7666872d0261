package sleep

import (
	"math/bits"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// move is something that happens in a world. Fair moves are those that come about by themselves sooner or later: answers,
// timers, the operator, the gateway, and clients that leave.
type move[W any] struct {
	name name
	fair bool
	make func(*W)
}

// name is what happens, and to what.
type name struct{ what, happens string }

func (n name) String() string { return n.what + n.happens }

// nameOf is the name of one action.
func nameOf(a Action) string { return actionNames[bits.TrailingZeros32(uint32(a))] }

// next appends all that can happen next.
func (w *world) next(all []move[world]) []move[world] {
	add := func(fair bool, what, happens string, make func(*world)) {
		all = append(all, move[world]{name{what, happens}, fair, make})
	}
	if w.alive() {
		machineMoves(w, add)
		requestMoves(w, add)
	}
	lateMoves(w, add)
	operatorMoves(w, add)
	gatewayMoves(w, add)
	personMoves(w, add)
	otherPrimaryMoves(w, add)
	return all
}

type adder func(fair bool, what, happens string, make func(*world))

// machineMoves are what reaches the Machine by itself.
func machineMoves(w *world, add adder) {
	if w.behind {
		add(true, "the watch", " brings the newest state", func(w *world) { w.see(true) })
		add(false, "the watch", " brings the newest state: unhealthy", func(w *world) { w.see(false) })
	} else {
		add(!w.machine.view.Healthy, "the Cluster's status", " changes", (*world).wrote)
	}
	for _, timer := range timersRunning(w.machine) {
		if timer == TimerResume && w.machine.resume == resumeAgain && w.late&schedulePatches != 0 {
			continue // it outlasts every request: see "Time" in doc.go
		}
		add(true, "timer ", timer.String(), func(w *world) { w.give(Timeout{timer}) })
	}
	if w.machine.phase == Awake && w.mayBeIdle() {
		add(true, "an observation", ": idle for the threshold", func(w *world) { w.give(Observed{}) })
	}
	if w.mayBeUsed() {
		add(false, "an observation", ": in use", func(w *world) { w.give(Observed{Blocker: idle.ReasonActive, InUse: true, IdleRestarted: true}) })
	}
	add(false, "the sidecar", " restarts", (*world).restart)
	if w.client == unasked && !w.on {
		add(false, "a failover", " to this instance, whose sidecar starts", func(w *world) {
			w.primary, w.marked = true, false
			w.restart()
			w.wrote()
		})
	}
}

// requestMoves are what becomes of the requests.
func requestMoves(w *world, add adder) {
	for i, r := range w.requests {
		switch r.progress {
		case sent:
			sentMoves(w, i, r, add)
		case answering:
			add(true, nameOf(r.action), " is answered", func(w *world) { w.answer(i, w.requests[i].result) })
		case unused:
		}
	}
}

func sentMoves(w *world, i int, r request, add adder) {
	carryOut := func(good bool) func(*world) {
		return func(w *world) {
			result := w.apply(w.requests[i], good)
			if result.View != (View{}) {
				w.behind = false // the answer says how the Cluster is
			}
			w.answer(i, result)
		}
	}
	if r.action != Sample || w.mayBeIdle() {
		add(true, nameOf(r.action), " is answered: done", carryOut(true))
	}
	if r.action&(ListBackups|AskSiblings|ReadCluster|Announce) != 0 || r.action == Sample && w.mayBeUsed() {
		add(false, nameOf(r.action), " is answered: not as it must be", carryOut(false))
	}
	if r.action == Sample { // it asks nobody else
		return
	}
	if r.action&clusterPatches != 0 && !r.stale { // the watch may be faster than the answer
		add(true, nameOf(r.action), " is carried out", func(w *world) {
			result := w.apply(w.requests[i], true)
			w.requests[i] = request{action: r.action, progress: answering, result: result}
		})
	}
	if w.client == unasked && (r.action == Suspend && w.schedule == active || r.action == Resume && w.schedule >= suspended) {
		add(false, nameOf(r.action), " is refused after the first of two schedules", func(w *world) {
			w.apply(w.requests[i], true)
			w.schedule = partly
			w.answer(i, Completed{Action: r.action, Outcome: Refused})
		})
	}
	add(false, nameOf(r.action), " is refused", func(w *world) { w.answer(i, Completed{Action: r.action, Outcome: Refused}) })
	if r.action&(clusterPatches|schedulePatches) != 0 && !r.stale {
		add(false, nameOf(r.action), " is carried out, and its answer lost", func(w *world) {
			w.apply(w.requests[i], true)
			w.answer(i, Completed{Action: r.action, Outcome: Lost})
		})
	}
	add(false, nameOf(r.action), " is late, and its answer lost", func(w *world) {
		w.abandonRequest(i)
		w.answer(i, Completed{Action: r.action, Outcome: Lost})
	})
}

// lateMoves are what becomes of requests that nobody waits for.
func lateMoves(w *world, add adder) {
	for i, action := range actionNames {
		late := w.late & (1 << i)
		if late == 0 {
			continue
		}
		add(false, action, " is carried out late", func(w *world) {
			w.late &^= late
			w.apply(request{action: late}, true)
		})
		add(true, action, " that was late is lost", func(w *world) { w.late &^= late })
	}
}

func operatorMoves(w *world, add adder) {
	switch {
	case w.on && w.operator == untouched:
		add(true, "the operator", " begins", func(w *world) { w.operator = deleting; w.wrote() })
	case w.on && w.operator == deleting:
		add(true, "the pods", " are gone", func(w *world) {
			w.operator, w.marked = gone, false
			w.restart()
		})
	case !w.on && w.operator != untouched:
		add(true, "the operator", " starts the pods", func(w *world) {
			w.operator, w.marked = untouched, false
			w.restart()
			w.wrote()
		})
	}
}

func gatewayMoves(w *world, add adder) {
	switch {
	case w.announced != "" && !w.on && w.acknowledged != w.announced:
		add(true, "the gateway", " acknowledges", func(w *world) { w.acknowledged = w.announced; w.wrote() })
	case w.on && w.ours && w.operator == gone:
		add(true, "a client comes,", " and the gateway wakes the cluster", func(w *world) { w.on, w.ours = false, false; w.wrote() })
	}
}

func personMoves(w *world, add adder) {
	switch {
	case !w.on:
		add(false, "a person", " hibernates it", func(w *world) { w.on, w.ours = true, false; w.wrote() })
	case w.ours:
		add(false, "a person", " turns hibernation off and on", func(w *world) { w.ours = false; w.wrote() })
		fallthrough
	default:
		add(!w.ours, "a person", " wakes it", func(w *world) { w.on, w.ours = false, false; w.wrote() })
	}
	if w.announced != "" {
		add(false, "a person", " removes the announcement", func(w *world) { w.announced = ""; w.wrote() })
	}
	if w.schedule == suspended {
		add(false, "a person", " comes to own the suspension", func(w *world) { w.schedule = suspendedByPerson; w.wroteSchedule() })
	}
}

// otherPrimaryMoves are a switchover and back, and what the Machine of the other primary does meanwhile.
func otherPrimaryMoves(w *world, add adder) {
	switch {
	case w.on:
		return
	case w.primary:
		add(false, "a switchover", " to another instance", func(w *world) { w.primary = false; w.wrote() })
		return
	}
	add(true, "a switchover", " to this instance", func(w *world) { w.primary = true; w.wrote() })
	switch {
	case w.announced != "":
		add(true, "the other primary", " removes the announcement", func(w *world) { w.announced = ""; w.wrote() })
	default:
		if w.schedule != active {
			add(true, "the other primary", " resumes the schedules", (*world).resume)
		}
		// By then the watch has brought the switchover, and what this instance requested as the primary has ended: see "Time" in doc.go.
		if !w.machine.view.Primary && w.machine.pending&Resume == 0 {
			add(false, "the other primary", " turns hibernation on", func(w *world) {
				w.suspend()
				w.on, w.ours = true, true
				w.wrote()
			})
		}
	}
}
