package sleep

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
)

// In the model of handovers, the Machine of the automaton's worlds is that of whichever instance is the primary: what the other
// primary does, it does itself once the trace has a failover.

// silent is the word of a move that leaves no trace.
const silent = ""

// listed is the word for a list of Backups that a sidecar read. It reads more of them than the Machine asks for.
const listed = "backups-listed"

// actionWords are the words for what the sidecar asks for, once it has taken effect.
var actionWords = map[string]string{
	ListBackups.String(): listed, Announce.String(): "announce", Suspend.String(): "suspend", Hibernate.String(): "hibernate",
	RemoveAnnouncement.String(): "remove-announcement", Withdraw.String(): "withdraw", Resume.String(): "resume",
	Fence.String(): "fence", RecordStop.String(): "record-stop", LiftFence.String(): "lift-fence",
}

// moveWords are the words for the other moves that leave a trace.
var moveWords = map[string]string{
	"the operator begins": "operator-begins",
	"the pods are gone":   "pods-gone",
	"a failover to this instance, whose sidecar starts": "failover",
	"the gateway acknowledges":                          "acknowledge",
	"a client comes, and the gateway wakes the cluster": "wake",
	"a person hibernates it":                            "person-hibernates",
	"a person wakes it":                                 "person-wakes",
	"a person turns hibernation off and on":             "person-takes-switch",
	"a person removes the announcement":                 "person-removes-announcement",
	"a person comes to own the suspension":              "person-owns-suspension",

	"the gateway holds every client":                           "hold",
	"a client comes, and the gateway removes the announcement": "interrupt",
	"a client comes, and the gateway lifts the fence":          "wake-dozing",
	"the plugin removes the fence of a hibernated cluster":     "remove-fence",
	"a person lifts the fence":                                 "person-lifts-fence",
	"a person lifts their fence":                               "person-lifts-fence",
	"a person fences it":                                       "person-fences",
	"a person takes the fence over":                            "person-takes-fence",
	"a person replaces it by one without annotations":          "person-replaces",
}

// changes are what traces tell of and the models have no moves for.
var changes = []string{"wake-manual", "wake-on-connect", "schedules-gone", "schedules-appear", "others-resume"}

// labelled is a move to another world.
type labelled struct {
	word string
	to   int32
}

// situation is what can be the case after a trace.
type situation struct {
	// worlds are the possible ones, in order, and closed under what leaves no trace.
	worlds []int32
	// manual says that no gateway is needed: its part is played by nobody, and leaves no trace.
	manual bool
	// schedules says that there is one to suspend. Without one nothing is written where the model suspends and resumes.
	schedules bool
}

// silent reports whether a word leaves no trace.
func (s situation) silent(word string) bool {
	switch word {
	case silent:
		return true
	case "acknowledge":
		return s.manual
	case "suspend", "resume":
		return !s.schedules
	default:
		return false
	}
}

// replayable is a world whose moves have words.
type replayable[W any] interface {
	explorable[W]
	spoken
}

var _ = []spoken{(*world)(nil), (*dozer)(nil)}

// spoken has words for moves.
type spoken interface {
	// word is the word for a move of that name.
	word(name string) string
	// permits reports whether a word may stand for something that the model has no move for, and that changes nothing in it.
	permits(word string) bool
	// activate is somebody else who resumes the schedules, or makes one.
	activate()
}

// automaton is a model that accepts traces. A trace may fit several worlds, so it steps from one set of worlds to the
// next. It visits worlds and sets only where traces lead, and caches them.
type automaton[W any, P replayable[W]] struct {
	first  W // a cluster that has just been made
	ids    map[key]int32
	worlds []W
	moves  [][]labelled // of each world; nil before they are asked for
	steps  map[[sha256.Size]byte]situation
}

func newAutomaton[W any, P replayable[W]](first W) *automaton[W, P] {
	return &automaton[W, P]{first: first, ids: map[key]int32{}, steps: map[[sha256.Size]byte]situation{}}
}

// start is a cluster that has just been made.
func (a *automaton[W, P]) start() situation {
	return a.closed(situation{worlds: []int32{a.id(a.first)}})
}

// step is the situation after a word. It has no worlds if the model has no such move.
func (a *automaton[W, P]) step(s situation, word string) situation {
	name := s.name(word)
	if known, ok := a.steps[name]; ok {
		return known
	}
	after := s
	switch word {
	case "wake-manual", "wake-on-connect":
		after.manual = word == "wake-manual"
	case "schedules-gone":
		after.schedules = false
	case "schedules-appear": // perhaps while others would be suspended if there were any
		after.schedules, after.worlds = true, a.activated(s)
	case "others-resume": // not necessarily all of them
		after.worlds = a.activated(s)
	default:
		after.worlds = a.moved(s, word)
	}
	after = a.closed(after)
	a.steps[name] = after
	return after
}

// moved are the worlds that the moves of a word lead to.
func (a *automaton[W, P]) moved(s situation, word string) []int32 {
	var to []int32
	for _, id := range s.worlds {
		if P(&a.worlds[id]).permits(word) {
			to = append(to, id)
		}
		for _, l := range a.next(id) {
			if l.word == word {
				to = append(to, l.to)
			}
		}
	}
	return to
}

// permits reports whether a word may stand for something that the model has no move for, and that changes nothing in it.
func (w *world) permits(word string) bool {
	switch word {
	case listed: // for a purpose of its own
		return true
	case "failover": // the model has the restart, which leaves no trace
		return w.on && w.alive()
	case "person-owns-suspension": // of one of several
		return w.schedule != active
	default:
		return false
	}
}

func (w *world) activate() {
	w.schedule = active
	w.wroteSchedule()
}

// activated are worlds whose schedules are suspended or active.
func (a *automaton[W, P]) activated(s situation) []int32 {
	to := slices.Clone(s.worlds)
	for _, id := range s.worlds {
		w := a.worlds[id]
		P(&w).activate()
		to = append(to, a.id(w))
	}
	return to
}

// possible are the words that could follow.
func (a *automaton[W, P]) possible(s situation) []string {
	var words []string
	for _, id := range s.worlds {
		for _, l := range a.next(id) {
			if !s.silent(l.word) && !slices.Contains(words, l.word) {
				words = append(words, l.word)
			}
		}
	}
	slices.Sort(words)
	return words
}

func (a *automaton[W, P]) id(w W) int32 {
	k := P(&w).key()
	if id, ok := a.ids[k]; ok {
		return id
	}
	id := int32(len(a.worlds))
	a.ids[k] = id
	a.worlds, a.moves = append(a.worlds, w), append(a.moves, nil)
	return id
}

// next are the moves of a world. None leads to one in which a promise is broken.
func (a *automaton[W, P]) next(id int32) []labelled {
	if a.moves[id] != nil {
		return a.moves[id]
	}
	w := a.worlds[id]
	next := make([]labelled, 0, 16)
	for _, m := range P(&w).next(nil) {
		if m.name.what == "a switchover" {
			continue
		}
		after := w
		m.make(&after)
		if P(&after).check(); P(&after).broken() == "" {
			next = append(next, labelled{P(&w).word(m.name.String()), a.id(after)})
		}
	}
	a.moves[id] = next
	return next
}

// closed adds what can come about without leaving a trace.
func (a *automaton[W, P]) closed(s situation) situation {
	seen := make([]bool, len(a.worlds))
	var worlds []int32
	add := func(id int32) {
		if int(id) >= len(seen) {
			seen = append(seen, make([]bool, len(a.worlds)-len(seen))...)
		}
		if !seen[id] {
			seen[id] = true
			worlds = append(worlds, id)
		}
	}
	for _, id := range s.worlds {
		add(id)
	}
	for i := 0; i < len(worlds); i++ {
		for _, l := range a.next(worlds[i]) {
			if s.silent(l.word) {
				add(l.to)
			}
		}
	}
	slices.Sort(worlds)
	s.worlds = worlds
	return s
}

// name tells a step of the automaton from every other.
func (s situation) name(word string) [sha256.Size]byte {
	bytes := make([]byte, 0, 4*len(s.worlds)+len(word)+2)
	for _, id := range s.worlds {
		bytes = binary.LittleEndian.AppendUint32(bytes, uint32(id))
	}
	for _, flag := range []bool{s.manual, s.schedules} {
		if flag {
			bytes = append(bytes, 1)
		} else {
			bytes = append(bytes, 0)
		}
	}
	return sha256.Sum256(append(bytes, word...))
}

// word is the word for a move of that name.
func (w *world) word(name string) string {
	action, _, _ := strings.Cut(name, " is ")
	nothing := actionWords[action] == "resume" && w.schedule == active
	return wordOf(name, nothing, isStale(w.requests[:], action))
}

// wordOf is the word for a move of that name, if the action that it carries out, if any, writes nothing, or can only fail.
func wordOf(name string, nothing, stale bool) string {
	if word, ok := moveWords[name]; ok {
		return word
	}
	action, what, _ := strings.Cut(name, " is ")
	word, ok := actionWords[action]
	late := what == "carried out late"
	switch {
	case !ok:
		return silent
	case word == listed:
		if what == "refused" {
			return silent
		}
		return word // it may have been read although its answer was lost
	case nothing, !late && stale:
		return silent // nothing is written
	}
	switch what {
	case "answered: done", "answered: not as it must be", "carried out", "carried out, and its answer lost", "carried out late",
		"refused after the first of two schedules":
		return word
	default:
		return silent
	}
}

// isStale reports whether a request that was sent can only fail.
func isStale(requests []request, action string) bool {
	return slices.ContainsFunc(requests, func(r request) bool {
		return r.progress == sent && r.stale && r.action.String() == action
	})
}

// word is the word for a move of that name.
func (w *dozer) word(name string) string {
	action, _, _ := strings.Cut(name, " is ")
	var nothing bool
	switch actionWords[action] {
	case "resume":
		nothing = !w.suspended
	case "remove-announcement":
		nothing = w.announced == "" && !w.since && !w.recorded
	}
	return wordOf(name, nothing, isStale(w.requests[:], action))
}

func (w *dozer) permits(word string) bool {
	return word == listed || word == "person-owns-suspension" && w.suspended
}

func (w *dozer) activate() { w.suspended = false }
