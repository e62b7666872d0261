package audit

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
)

// tracer makes traces of one Cluster's records; more than one if it was deleted and made anew.
type tracer struct {
	traces  []Trace
	omitted []string

	current *Trace // nil: its beginning is not known, or it was omitted
	dozed   bool   // a doze was announced

	uid       string
	state     state
	schedules map[string]schedule
	// unanswered are writes of which the API server did not know what came of them.
	unanswered []*record
}

// take takes in the next record.
func (t *tracer) take(r *record) {
	switch {
	case r.unanswered():
		t.unanswered = append(t.unanswered, r)
	case !r.took():
	case r.resource == "backups":
		t.listed(r)
	case r.resource == "clusters" && r.version != 0:
		t.wroteCluster(r)
	case r.resource == "scheduledbackups" && r.version != 0:
		t.wroteSchedule(r)
	case r.resource == "scheduledbackups":
		t.changeSchedules(r, func() { delete(t.schedules, r.name) })
	}
}

// finish ends the trace.
func (t *tracer) finish() {
	if t.current != nil {
		t.current.Dozed = t.dozed
		t.traces = append(t.traces, *t.current)
		t.current = nil
	}
	t.dozed = false
}

// omit leaves the current trace out.
func (t *tracer) omit(why string) {
	t.omitted = append(t.omitted, fmt.Sprintf("%s/%s: %s, for which no model of traces has words", t.current.Namespace, t.current.Name, why))
	t.current = nil
}

func (t *tracer) say(r *record, by *record, word Word) {
	if t.current != nil {
		t.current.Steps = append(t.current.Steps, Step{At: r.done, Word: word, By: by.pod})
	}
}

// last is the newest step but for lists.
func (t *tracer) last() Word {
	if t.current == nil {
		return ""
	}
	for _, step := range slices.Backward(t.current.Steps) {
		if step.Word != BackupsListed {
			return step.Word
		}
	}
	return ""
}

// listed has a word for a list of Backups. One that follows another of the same pod adds nothing to it.
func (t *tracer) listed(r *record) {
	if t.current != nil {
		if steps := t.current.Steps; len(steps) != 0 && steps[len(steps)-1].Word == BackupsListed && steps[len(steps)-1].By == r.pod {
			return
		}
	}
	t.say(r, r, BackupsListed)
}

// failedOver has the word for a failover since the write before. What the new primary has listed since then, it listed as the
// primary.
func (t *tracer) failedOver(r *record, primary string) {
	if t.current == nil {
		return
	}
	at := len(t.current.Steps)
	for at > 0 && t.current.Steps[at-1].Word == BackupsListed && t.current.Steps[at-1].By == primary {
		at--
	}
	t.current.Steps = slices.Insert(t.current.Steps, at, Step{At: r.done, Word: Failover})
}

// author is who wrote a field that a record shows changed: a write before may have been unanswered.
func (t *tracer) author(r *record, key string) *record {
	if !r.mentions(key) {
		for _, before := range slices.Backward(t.unanswered) {
			if before.resource == r.resource && before.name == r.name && before.mentions(key) {
				return before
			}
		}
	}
	return r
}

func (t *tracer) wroteCluster(r *record) {
	if uid := string(r.object.Metadata.UID); uid != t.uid {
		t.finish()
		t.uid, t.state, t.unanswered = uid, state{}, nil
		if r.verb == "create" || r.code == http.StatusCreated { // server-side apply creates by a patch
			t.current = &Trace{Namespace: r.namespace, Name: r.name, UID: uid}
			if t.suspendable() {
				t.say(r, r, SchedulesAppear)
			}
		} else {
			t.omitted = append(t.omitted, fmt.Sprintf("%s/%s: it was made before the log begins", r.namespace, r.name))
		}
	}
	before, after := t.state, r.object.state()
	t.state = after
	hibernated := after.on && !before.on && t.author(r, hibernation) != r // by a write before this one, whose answer was lost
	if !hibernated {
		t.statusChanged(r, before, after)
	}
	t.rulesChanged(r, before, after)
	t.dozeChanged(r, before, after)
	t.hibernationChanged(r, before, after)
	if hibernated {
		t.statusChanged(r, before, after)
	}
	t.announcementChanged(r, before, after)
}

// statusChanged has the words for what the operator did before the write.
func (t *tracer) statusChanged(r *record, before, after state) {
	operator := &record{}
	if before.primary != "" && before.primary != after.primary {
		t.failedOver(r, after.primary)
	}
	if after.begun && (!before.begun || before.gone && !after.gone) {
		t.say(r, operator, OperatorBegins)
	}
	if after.gone && !before.gone {
		t.say(r, operator, PodsGone)
	}
}

func (t *tracer) rulesChanged(r *record, before, after state) {
	switch {
	case after.manual && !before.manual:
		t.say(r, r, WakeManual)
	case before.manual && !after.manual:
		t.say(r, r, WakeOnConnect)
	}
}

// dozeChanged has the words for the fence, and for what is recorded of a doze.
func (t *tracer) dozeChanged(r *record, before, after state) {
	if t.current != nil && after.theirs {
		t.omit("another manager fenced it")
	}
	by := t.author(r, fence)
	switch {
	case after.fenced && !before.fenced:
		t.say(r, by, Fence)
	case !before.fenced || after.fenced || before.on && !after.on: // the last is part of the wake
	case by.by == instance:
		t.say(r, by, LiftFence)
	case after.on && by.by == plugin:
		t.say(r, by, RemoveFence)
	case before.since != "" && after.since == "" && before.stopped == "" && by.by != plugin: // the plugin has looked for itself
		t.say(r, by, PersonReplaces)
	case before.since != "" && after.since == "":
		t.say(r, by, WakeDozing)
	default:
		t.say(r, by, PersonLiftsFence)
	}
	if by := t.author(r, stopped); after.stopped != "" && after.stopped != before.stopped {
		t.say(r, by, RecordStop)
	} else if before.since != "" && after.since == "" && before.announced == "" && by.by == instance {
		t.say(r, by, RemoveAnnouncement)
	}
}

// acknowledgedBefore has the word for an acknowledgement that nothing shows: its answer was lost, and the sidecar's next write
// removed it together with the announcement.
func (t *tracer) acknowledgedBefore(before state) {
	if before.announced == "" || before.acknowledged == before.announced {
		return
	}
	for _, write := range t.unanswered {
		if write.by == plugin && write.resource == "clusters" && write.mentions(gatewayReady) && write.mentions(before.announced) {
			t.insertAfter(Announce, Step{At: write.done, Word: Acknowledge, By: write.pod})
			return
		}
	}
}

// insertAfter puts a step behind the newest one of a word.
func (t *tracer) insertAfter(word Word, step Step) {
	if t.current == nil {
		return
	}
	for at, before := range slices.Backward(t.current.Steps) {
		if before.Word == word {
			t.current.Steps = slices.Insert(t.current.Steps, at+1, step)
			return
		}
	}
}

func (t *tracer) hibernationChanged(r *record, before, after state) {
	by := t.author(r, hibernation)
	if after.on && !before.on && by.by == instance {
		t.acknowledgedBefore(before)
	}
	switch {
	case after.on && !before.on && by.by == instance:
		t.say(r, by, Hibernate)
	case after.on && !before.on:
		t.say(r, by, PersonHibernates)
	case before.on && !after.on && by.by == instance:
		t.say(r, by, Withdraw)
	case before.on && !after.on && by.by == plugin:
		t.say(r, by, Wake)
	case before.on && !after.on:
		t.say(r, by, PersonWakes)
	case before.on && before.ours && !after.ours:
		t.say(r, by, PersonTakesHibernation)
	}
}

func (t *tracer) announcementChanged(r *record, before, after state) {
	by := t.author(r, announced)
	switch {
	case after.announced == before.announced:
	case after.announced != "" && by.by == instance:
		t.say(r, by, Announce)
		t.dozed = t.dozed || after.dozeAnnounced()
	case after.announced != "":
		t.say(r, by, PersonAnnounces)
	case by.by == instance && (after.on && !before.on || after.fenced && !before.fenced): // part of that patch
	case by.by == instance:
		t.say(r, by, RemoveAnnouncement)
	case by.by == plugin && before.dozeAnnounced():
		t.say(r, by, Interrupt)
	default:
		t.say(r, by, PersonRemovesAnnouncement)
	}
	if after.holding != before.holding && after.holding != "" && after.holding == after.announced {
		t.say(r, t.author(r, holding), Hold)
	}
	if after.acknowledged == before.acknowledged || after.acknowledged == "" || after.acknowledged != after.announced {
		return
	}
	if by := t.author(r, gatewayReady); by.by == plugin {
		t.say(r, by, Acknowledge)
	} else {
		t.say(r, by, PersonAcknowledges)
	}
}

func (t *tracer) wroteSchedule(r *record) {
	before, existed := t.schedules[r.name]
	after := r.object.schedule()
	by := t.author(r, suspendedMark)
	t.changeSchedules(r, func() {
		t.schedules[r.name] = after
		switch {
		case !existed:
		case by.by == instance && after.marked && after.mark != before.mark:
			t.saySchedules(r, by, Suspend)
		case before.marked && !after.marked && by.by == instance:
			t.saySchedules(r, by, Resume)
		case before.marked && !after.marked:
			t.saySchedules(r, by, OthersResume)
		case after.marked && before.ours && !after.ours:
			t.say(r, by, PersonOwnsSuspension)
		}
	})
}

// saySchedules says a word of one attempt once.
func (t *tracer) saySchedules(r, by *record, word Word) {
	if t.last() != word {
		t.say(r, by, word)
	}
}

// changeSchedules changes what is known of the schedules, and says whether there are any for a sidecar to suspend.
func (t *tracer) changeSchedules(r *record, change func()) {
	before := t.suspendable()
	if !before && r.version != 0 && r.object.schedule().suspendable() { // what comes to be there is there before anything happens to it
		t.say(r, r, SchedulesAppear)
	}
	change()
	if before && !t.suspendable() {
		t.say(r, r, SchedulesGone)
	}
}

func (t *tracer) suspendable() bool {
	for _, s := range t.schedules {
		if s.suspendable() {
			return true
		}
	}
	return false
}

// split makes one record of every object of a collection that was deleted.
func (r *record) split() []record {
	if r.verb != "deletecollection" || !r.took() {
		return []record{*r}
	}
	var list struct {
		Items []object `json:"items"`
	}
	if json.Unmarshal(r.answer, &list) != nil {
		return nil
	}
	records := make([]record, 0, len(list.Items))
	for i := range list.Items {
		one := *r
		one.name, one.object = list.Items[i].Metadata.Name, list.Items[i]
		records = append(records, one)
	}
	return records
}
