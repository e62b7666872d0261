package sleep

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"strings"
)

// pair is a cluster of two instances, each with a Machine of its own. They share the Cluster and the schedules: what one of them
// writes, the other's watch brings. Neither restarts, and nothing is refused; nobody else changes the Cluster.
type pair struct {
	of [2]world
	// switchovers are those that there may still be.
	switchovers int
}

// key packs both.
func (p *pair) key() key {
	var packed bytes.Buffer
	packed.WriteByte(byte(p.switchovers))
	for i := range p.of {
		one := &packer{}
		p.of[i].pack(one)
		_ = binary.Write(&packed, binary.LittleEndian, one.key)
	}
	var k key
	sum := sha256.Sum256(packed.Bytes())
	_, _ = binary.Decode(sum[:], binary.LittleEndian, &k)
	return k
}

// next appends all that can happen next.
func (p *pair) next(all []move[pair]) []move[pair] {
	for i := range p.of {
		add := func(fair bool, what, happens string, make func(*world)) {
			switch {
			case !fair && !late(what, happens) || happens == " is carried out":
				return
			case what == "timer " && happens == TimerResume.String() && p.of[i].machine.resume == resumeAgain && p.of[1-i].maySuspend():
				return // it outlasts announcements and requests: see "Time" in doc.go
			case p.of[i].primary && (what == "Suspend" || what == "Hibernate") && (p.of[1-i].writesSchedules() || p.of[1-i].machine.view.Primary):
				return // see "Time" in doc.go
			}
			all = append(all, move[pair]{name{[2]string{"1: ", "2: "}[i] + what, happens}, fair, func(p *pair) { p.change(i, make) }})
		}
		w := &p.of[i]
		if w.alive() {
			machineMoves(w, add)
			requestMoves(w, add)
		}
		lateMoves(w, add)
		if i == 0 {
			operatorMoves(w, add)
			gatewayMoves(w, add)
		}
	}
	if !p.of[0].on && p.switchovers != 0 {
		all = append(all, move[pair]{name{"a switchover", " to the other instance"}, false, func(p *pair) {
			p.switchovers--
			for i := range p.of {
				p.of[i].primary, p.of[i].moved = !p.of[i].primary, true
			}
			p.change(0, (*world).wrote)
		}})
	}
	return all
}

// writesSchedules reports whether a patch of the schedules is on its way.
func (w *world) writesSchedules() bool {
	under := w.late
	for _, r := range w.requests {
		under |= r.action
	}
	return under&schedulePatches != 0
}

// maySuspend reports whether a patch of the schedules is on its way, or may follow for a pending announcement.
func (w *world) maySuspend() bool {
	return w.writesSchedules() || w.machine.phase >= Announcing && w.machine.phase <= AwaitingGateway
}

// late reports whether a move is one of a hibernation patch whose answer is lost.
func late(what, happens string) bool {
	return what == "Hibernate" && (strings.HasSuffix(happens, "answer lost") || happens == " is carried out late")
}

// change makes a move of one instance, and has the other one follow.
func (p *pair) change(i int, make func(*world)) {
	one, other := &p.of[i], &p.of[1-i]
	before := *one
	make(one)
	other.on, other.ours, other.operator, other.schedule = one.on, one.ours, one.operator, one.schedule
	switch one.announced {
	case before.announced:
	case newest:
		other.announced = older
	default:
		other.announced = one.announced
	}
	if other.acknowledged = ""; one.acknowledged != "" {
		other.acknowledged = other.announced
	}
	if one.operator == gone && before.operator != gone || one.operator == untouched && before.operator != untouched {
		other.restart()
	}
	if one.changes != before.changes {
		other.wrote()
	}
	if one.scheduleChanges != before.scheduleChanges {
		other.wroteSchedule()
	}
	one.changes, one.scheduleChanges, other.changes, other.scheduleChanges = 0, 0, 0, 0
}

// check asserts what must hold in every state.
func (p *pair) check() {
	for i := range p.of {
		w := p.of[i]
		w.late |= p.of[1-i].late
		w.check()
		p.of[i].violation = w.violation
	}
}

func (p *pair) broken() string {
	if p.of[0].violation != "" {
		return "1: " + p.of[0].violation
	}
	return p.of[1].violation
}

// settled reports whether the state is one to stay in.
func (p *pair) settled() bool { return p.of[0].settled() && p.of[1].settled() }
