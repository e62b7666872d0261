package sleep

import "github.com/cnpg-i/scale-to-zero/sidecar/idle"

// dozerAdder adds a move.
type dozerAdder func(fair bool, what, happens string, make func(*dozer))

// next appends all that can happen next.
func (w *dozer) next(all []move[dozer]) []move[dozer] {
	add := func(fair bool, what, happens string, make func(*dozer)) {
		all = append(all, move[dozer]{name{what, happens}, fair, make})
	}
	if w.alive() {
		w.machineMoves(add)
		for i, r := range w.requests {
			w.requestMoves(i, r, add)
		}
		w.instanceMoves(add)
		w.kubeletMoves(add)
	}
	w.lateMoves(add)
	w.operatorMoves(add)
	w.gatewayMoves(add)
	w.personMoves(add)
	return all
}

// machineMoves are what reaches the Machine by itself.
func (w *dozer) machineMoves(add dozerAdder) {
	if w.behind {
		add(true, "the watch", " brings the newest state", func(w *dozer) { w.see(true) })
		if w.fence == ours { // it is as in the other world otherwise
			add(false, "the watch", " brings the newest state: unhealthy", func(w *dozer) { w.see(false) })
		}
	} else {
		known := w.machine.view
		add(!known.Healthy || known.NotReady == w.endpoint, "the Cluster's status", " changes", (*dozer).wrote)
	}
	for _, timer := range timersRunning(w.machine) {
		if timer == TimerHeld && w.lags {
			continue // it outlasts how long a replica lags: see "Time" in doc.go
		}
		add(true, "timer ", timer.String(), func(w *dozer) { w.give(Timeout{timer}) })
	}
	switch {
	case w.machine.phase == Awake && w.machine.view.MayDoze && w.postgres == running && w.fence != theirs:
		add(true, "an observation", ": idle, to doze", func(w *dozer) { w.give(Observed{Doze: true}) })
	case w.machine.phase == Dozing:
		add(true, "an observation", ": idle, to hibernate", func(w *dozer) { w.give(Observed{}) })
	}
	if w.machine.phase == Awake && w.postgres == running { // what keeps it from dozing does not keep it from hibernating
		add(false, "an observation", ": idle, to hibernate instead", func(w *dozer) { w.give(Observed{}) })
	}
	if w.postgres == running {
		add(false, "an observation", ": in use", func(w *dozer) { w.give(Observed{Blocker: idle.ReasonActive, InUse: true, IdleRestarted: true}) })
	}
	add(false, "the sidecar", " restarts", (*dozer).restart)
}

// requestMoves are what becomes of a request.
func (w *dozer) requestMoves(i int, r request, add dozerAdder) {
	switch {
	case r.progress == unused:
	case r.progress == answering:
		add(true, nameOf(r.action), " is answered", func(w *dozer) { w.answer(i, w.requests[i].result) })
	case r.action&(AwaitStop|AwaitServing) != 0:
		if r.action == AwaitStop && w.postgres == stopped || r.action == AwaitServing && w.postgres == running && w.blame == unfenced {
			add(true, nameOf(r.action), " has come about", func(w *dozer) { w.answer(i, Completed{Action: r.action}) })
		}
		if w.cancelled {
			add(true, nameOf(r.action), " is cancelled", func(w *dozer) { w.answer(i, Completed{Action: r.action, Outcome: Refused}) })
		}
	default:
		w.sentMoves(i, r, add)
	}
}

func (w *dozer) sentMoves(i int, r request, add dozerAdder) {
	carryOut := func(good bool) func(*dozer) {
		return func(w *dozer) {
			result := w.apply(w.requests[i], good)
			if result.View != (View{}) {
				w.behind = false // the answer says how the Cluster is
			}
			w.answer(i, result)
		}
	}
	if r.action != Sample || w.behind || w.fence != theirs { // the sample finds a person's fence that is known
		add(true, nameOf(r.action), " is answered: done", carryOut(true))
	}
	switch {
	case r.action == Sample: // it asks nobody else
		add(false, nameOf(r.action), " is answered: not as it must be", carryOut(false))
		return
	case r.action == AskManager && w.postgres == running:
		add(true, nameOf(r.action), " is answered: it is ignored", carryOut(false))
	case r.action&(ListBackups|Prepare) != 0, r.action == ReadCluster && w.fence == ours:
		add(false, nameOf(r.action), " is answered: not as it must be", carryOut(false))
	}
	if r.action&schedulePatches == 0 && (r.action != WithdrawReadiness || w.machine.phase == LeavingServices) {
		add(false, nameOf(r.action), " is refused", func(w *dozer) { w.answer(i, Completed{Action: r.action, Outcome: Refused}) })
	}
	if r.action&fencePatches == 0 || r.stale {
		return
	}
	if r.action&clusterPatches == 0 || r.action == Hibernate {
		add(true, nameOf(r.action), " is carried out", func(w *dozer) { // the watch may be faster than the answer
			result := w.apply(w.requests[i], true)
			w.requests[i] = request{action: r.action, progress: answering, result: result}
		})
	}
	add(false, nameOf(r.action), " is carried out, and its answer lost", func(w *dozer) {
		w.apply(w.requests[i], true)
		w.answer(i, Completed{Action: r.action, Outcome: Lost})
	})
	add(false, nameOf(r.action), " is late, and its answer lost", func(w *dozer) {
		w.abandonRequest(i)
		w.answer(i, Completed{Action: r.action, Outcome: Lost})
	})
}

// lateMoves are what becomes of requests that nobody waits for.
func (w *dozer) lateMoves(add dozerAdder) {
	for i, action := range actionNames {
		late := w.late & (1 << i)
		if late == 0 {
			continue
		}
		add(false, action, " is carried out late", func(w *dozer) {
			w.late &^= late
			w.apply(request{action: late}, true)
			w.forget()
		})
		add(true, action, " that was late is lost", func(w *dozer) { w.late &^= late; w.forget() })
	}
}

// instanceMoves are what the instance manager does.
func (w *dozer) instanceMoves(add dozerAdder) {
	switch {
	case w.postgres == running && w.blame != unfenced:
		add(false, "the instance manager", " obeys the fence", func(w *dozer) { w.postgres = stopping })
		if w.fence == unfenced {
			add(true, "the instance manager", " has not obeyed the fence, and will not", func(w *dozer) { w.blame = unfenced; w.forget() })
		}
	case w.postgres == stopping:
		add(true, "PostgreSQL", " has stopped", func(w *dozer) { w.postgres, w.blame = stopped, unfenced; w.forget() })
	case w.postgres == stopped && w.fence == unfenced:
		add(true, "PostgreSQL", " starts", func(w *dozer) { w.postgres = running })
	}
}

// kubeletMoves are what comes of the readiness port.
func (w *dozer) kubeletMoves(add dozerAdder) {
	if w.closed && !w.leased {
		add(true, "the readiness port", " opens by default", func(w *dozer) { w.closed, w.excused = false, true; w.forget() })
	}
	switch {
	case w.closed && w.endpoint:
		add(true, "the pod", " leaves its Services", func(w *dozer) { w.endpoint, w.excused = false, false })
	case w.endpoint && w.handover == acknowledged:
		add(false, "the pod", " is not ready for a moment", func(w *dozer) { w.endpoint = false })
	case !w.closed && !w.endpoint:
		add(true, "the pod", " joins its Services", func(w *dozer) { w.endpoint = true })
	}
	if w.endpoint && w.postgres != stopped && !w.excused {
		add(false, "a client comes", " by a Service", (*dozer).visit)
	}
}

func (w *dozer) operatorMoves(add dozerAdder) {
	switch {
	case w.on && w.operator == untouched:
		add(true, "the operator", " begins", func(w *dozer) { w.operator = deleting; w.wrote() })
	case w.on && w.operator == deleting && (w.fence == ours || w.fence == unfenced && w.endpoint): // a fenced pod is deleted by the plugin
		add(true, "the pods", " are gone", func(w *dozer) { w.operator = gone; w.replace() })
	case w.on && w.operator == gone && w.fence == ours:
		add(true, "the plugin", " removes the fence of a hibernated cluster", func(w *dozer) { w.wake() })
	case !w.on && w.operator == deleting:
		add(true, "the operator", " leaves the pods alone", func(w *dozer) { w.operator = untouched; w.wrote() })
	case !w.on && w.operator == gone:
		add(true, "the operator", " starts the pods", func(w *dozer) { w.operator = untouched; w.replace(); w.wrote() })
	}
}

// wake is the patch of the gateway that lifts the fence.
func (w *dozer) wake() {
	if w.fence == ours {
		w.fence = unfenced
	}
	w.since, w.recorded, w.announced, w.unproven = false, false, "", false
	w.wrote()
	w.forget()
}

// gatewayMoves are what the gateway does, and the clients that come to it.
func (w *dozer) gatewayMoves(add dozerAdder) {
	cluster, decided := w.decided()
	switch {
	case decided.Acknowledge != "":
		add(true, "the gateway", " acknowledges", func(w *dozer) { w.handover = acknowledged; w.wrote() })
	case decided.Confirm != "":
		add(true, "the gateway", " holds every client", func(w *dozer) { w.handover, w.lags = holding, true; w.wrote() })
	}
	switch {
	case w.on:
		if w.ours && w.operator == gone {
			add(true, "a client comes,", " and the gateway wakes the cluster", func(w *dozer) { w.on, w.ours = false, false; w.wake() })
		}
		return
	case cluster.Dozing:
		if cluster.Stopped {
			add(true, "a client comes,", " and the gateway lifts the fence", (*dozer).wake)
		}
		return
	case cluster.Holding:
		add(false, "a client comes,", " and the gateway removes the announcement", func(w *dozer) { w.announced = ""; w.wrote(); w.forget() })
	}
	if w.lags {
		add(true, "every replica of the gateway", " knows that it holds", func(w *dozer) { w.lags = false })
	}
	if w.postgres != stopped && (!cluster.HoldsAll() || w.lags) && !w.unproven {
		add(false, "a client comes", " through the gateway", (*dozer).visit)
	}
}

// visit is a client that is passed to PostgreSQL.
func (w *dozer) visit() {
	if w.blame == ours && w.fence != theirs { // a person's fence is to keep clients out
		w.violate("a client is passed to a PostgreSQL that may still stop")
	}
	w.visited = true
	w.forget()
}

// engaged reports whether the model without dozes does not cover this state.
func (w *dozer) engaged() bool {
	return w.fence != unfenced || w.handover == holding || w.since || w.closed || w.late&Fence != 0
}

func (w *dozer) personMoves(add dozerAdder) {
	change := func(fair bool, happens string, make func(*dozer)) {
		add(fair, "a person", happens, func(w *dozer) { make(w); w.wrote(); w.meddled = true; w.forget() })
	}
	if w.meddled {
		return
	}
	switch w.fence {
	case unfenced:
		if w.engaged() && !w.on {
			change(false, " fences it", func(w *dozer) {
				if w.fence = theirs; w.postgres == running && w.blame == unfenced {
					w.blame = theirs
				}
			})
		}
	case ours:
		if !w.on {
			change(false, " takes the fence over", func(w *dozer) { w.fence = theirs })
		}
		change(false, " lifts the fence", func(w *dozer) { w.fence = unfenced })
		if w.machine.phase == Hibernating || w.machine.phase.Fenced() { // otherwise nobody would know that it was to doze
			change(false, " replaces it by one without annotations", func(w *dozer) {
				w.fence, w.since, w.recorded, w.announced, w.on = unfenced, false, false, "", false
			})
		}
	case theirs:
		change(true, " lifts their fence", func(w *dozer) { w.fence = unfenced })
	}
	switch {
	case !w.on && w.engaged() && w.fence != theirs:
		change(false, " hibernates it", func(w *dozer) { w.on, w.ours = true, false })
	case !w.on:
	case w.ours:
		change(false, " wakes it", func(w *dozer) { w.on, w.ours = false, false })
	default:
		change(true, " wakes it", func(w *dozer) { w.on, w.ours = false, false })
	}
	if w.announced != "" {
		change(false, " removes the announcement", func(w *dozer) { w.announced = "" })
	}
	if w.fence == ours && !w.on || !w.mayDoze {
		change(false, " changes whether it may doze", func(w *dozer) { w.mayDoze = !w.mayDoze })
	}
	if w.alive() && w.fence == ours {
		change(false, " deletes the pod", (*dozer).replace)
	}
}
