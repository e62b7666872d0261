package control

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/sockets"
)

const (
	// deafLasts is for how long nothing is listened to after two uses that are no farther apart: that there is some is known,
	// and under a storm of logins one report a second is as good as a thousand. A single use is dated by its own report.
	deafLasts = time.Second
	// askAgain is how long it takes until a kernel that does not report is tried again.
	askAgain = 5 * time.Minute
	// measureEvery is how long the size of a TLS handshake is taken to be the same: a certificate may be renewed.
	measureEvery = time.Hour
	// remembered is for how long an address is taken to be an instance's after it was one.
	remembered = time.Minute
	// mostDoubtful is how many sessions in doubt are kept between two looks.
	mostDoubtful = 1024
)

// ears listens to the kernel's reports of TCP sessions that ended.
type ears struct {
	heard   chan batch
	reports Reports       // nil: not listening
	stop    chan struct{} // ends the goroutine that receives
	done    chan struct{}
	// deaf says that listening was given up because of a use.
	deaf      bool
	lastUse   time.Time // when one was last reported, or listening began again after one
	refused   time.Time // until then the kernel is not asked again
	handshake activity.Handshake
	measured  time.Time
	// peers and former are the clients of the last two looks: a session may be gone from the second when its report comes.
	peers, former map[netip.AddrPort]activity.Class
	instances     map[netip.Addr]time.Time
}

// batch is what was received at once.
type batch struct {
	from  Reports
	ended []activity.Ended
	err   error
}

// meet takes in which addresses the instances have.
func (e *ears) meet(addresses map[string]netip.Addr, now time.Time) {
	if e.instances == nil {
		e.instances = map[netip.Addr]time.Time{}
	}
	for _, address := range addresses {
		e.instances[address] = now
	}
	// An instance that is there has just been seen, however rarely the Cluster changes.
	maps.DeleteFunc(e.instances, func(address netip.Addr, seen time.Time) bool {
		return now.Sub(seen) > remembered && !slices.Contains(slices.Collect(maps.Values(addresses)), address)
	})
}

// remember takes in whose the clients of a look were.
func (e *ears) remember(peers map[netip.AddrPort]activity.Class) { e.peers, e.former = peers, e.peers }

// met tells whether the newest look showed a client that the one before did not: he has logged in since.
func (e *ears) met() bool {
	for peer, class := range e.peers {
		if _, known := e.former[peer]; !known && class != activity.ClassInfrastructure {
			return true
		}
	}
	return false
}

// judge tells what an ended session of a client comes to.
func (l *Loop) judge(ended activity.Ended, client netip.Addr) activity.Verdict {
	peers := l.ears.peers
	if _, known := peers[ended.Peer]; !known {
		peers = l.ears.former
	}
	verdict := activity.Judge(ended, activity.Surroundings{
		Behind: client,
		Peers:  peers, Instances: slices.Collect(maps.Keys(l.ears.instances)), Ignore: l.status.Policy.Ignore,
		Handshake: l.ears.handshake,
	})
	delete(l.ears.peers, ended.Peer)
	delete(l.ears.former, ended.Peer)
	l.parts.Observer.Judged(verdict)
	return verdict
}

// join begins to listen if nobody does, and proves that reports arrive. What happened before is not known, unless listening
// was given up because of a use: then it lasted until now.
func (l *Loop) join(ctx context.Context) {
	now := time.Now()
	if l.ears.reports != nil || now.Before(l.ears.refused) {
		return
	}
	reports, err := l.parts.OpenReports()
	if err != nil {
		l.refuse(err)
		return
	}
	measure := now.Sub(l.ears.measured) >= measureEvery
	others, handshake, err := reports.Prove(ctx, measure)
	if err != nil {
		reports.Close()
		if errors.Is(err, sockets.ErrUnsupported) {
			l.refuse(err)
		}
		l.memory.gap = true
		return
	}
	if measure {
		l.ears.handshake, l.ears.measured = handshake, now
	}
	if l.status.Unsupported {
		l.parts.Logger.Info("the kernel reports the sockets that end")
	}
	l.status.Unsupported = false
	if l.ears.deaf {
		l.ears.lastUse = time.Now()
		l.memory.used = later(l.memory.used, l.ears.lastUse)
	} else {
		l.memory.gap = true
	}
	l.ears.deaf = false
	l.ears.reports, l.ears.stop, l.ears.done = reports, make(chan struct{}), make(chan struct{})
	for _, ended := range others {
		l.take(ended)
	}
	go receive(reports, l.ears.heard, l.ears.stop, l.ears.done)
}

// refuse remembers that the kernel does not report, and says so once.
func (l *Loop) refuse(err error) {
	l.ears.refused, l.ears.deaf, l.memory.gap = time.Now().Add(askAgain), false, true
	if !l.status.Unsupported {
		l.parts.Logger.Warn("the kernel does not report the sockets that end; the instance is looked at every second", "error", err.Error())
	}
	l.status.Unsupported = true
}

// receive passes on what arrives until the reports are closed.
func receive(reports Reports, heard chan<- batch, stop <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	for {
		ended, err := reports.Receive(time.Time{})
		select {
		case heard <- batch{from: reports, ended: ended, err: err}:
		case <-stop:
			return
		}
		if err != nil && !errors.Is(err, sockets.ErrLost) {
			return
		}
	}
}

// leave stops listening.
func (l *Loop) leave() {
	l.ears.deaf = false
	if l.ears.reports == nil {
		return
	}
	close(l.ears.stop)
	l.ears.reports.Close()
	<-l.ears.done
	l.ears.reports = nil
}

// take judges one ended session and tells whether it was a use.
func (l *Loop) take(ended activity.Ended) bool {
	client := l.parts.Introductions.Behind(ended.Peer)
	defer l.parts.Introductions.Ended(ended.Peer)
	switch l.judge(ended, client.Addr()) {
	case activity.VerdictUnseen:
		l.status.LastPeer = client.Addr()
	case activity.VerdictClient:
	case activity.VerdictUncertain:
		ended.Peer = client // who comes through a gateway has its address otherwise
		if !l.reading.IsZero() && !ended.At.Before(l.reading) {
			l.memory.late = appendBounded(l.memory.late, ended)
		} else {
			l.memory.uncertain = appendBounded(l.memory.uncertain, ended)
		}
		return false
	case activity.VerdictIgnored, activity.VerdictInfrastructure:
		l.memory.others = true
		return false
	default:
		return false
	}
	l.memory.used = later(l.memory.used, ended.At)
	return true
}

// appendBounded keeps as many sessions in doubt as mean anything: while the server cannot be asked nobody takes them away, and more
// than the exporter logs in at once cannot be told from it anyway.
func appendBounded(doubtful []activity.Ended, ended activity.Ended) []activity.Ended {
	if len(doubtful) >= mostDoubtful {
		return doubtful
	}
	return append(doubtful, ended)
}

// hear takes a batch in.
func (l *Loop) hear(b batch) {
	if b.from != l.ears.reports {
		return
	}
	used := false
	for _, ended := range b.ended {
		used = l.take(ended) || used
	}
	switch {
	case errors.Is(b.err, sockets.ErrLost):
		l.parts.Observer.Judged(activity.VerdictLost)
		l.memory.used, used = later(l.memory.used, time.Now()), true
	case b.err != nil:
		l.parts.Logger.Warn("listening to the kernel failed and is begun again", "error", b.err.Error())
		l.leave()
		l.memory.gap = true
		l.soon()
	}
	now := time.Now()
	often := now.Sub(l.ears.lastUse) < deafLasts
	if used {
		l.ears.lastUse = now
	}
	switch {
	case used && often:
		l.becomeDeaf()
	case used:
		l.soon()
		if !l.status.State.IdleSince.IsZero() {
			l.status.State.IdleSince = later(l.status.State.IdleSince, l.memory.used)
		}
		l.publishUse()
	case len(l.memory.uncertain) != 0:
		l.soon()
	}
}

// hearWaiting takes in what has arrived: what came before the end of a look belongs to it.
func (l *Loop) hearWaiting() {
	for {
		select {
		case b := <-l.ears.heard:
			if b.from != l.ears.reports {
				continue
			}
			for _, ended := range b.ended {
				l.take(ended)
			}
			if b.err != nil {
				l.parts.Observer.Judged(activity.VerdictLost)
				l.memory.used = later(l.memory.used, time.Now())
			}
		default:
			return
		}
	}
}

// becomeDeaf stops listening for a second, since the server is in use.
func (l *Loop) becomeDeaf() {
	l.leave()
	l.ears.deaf = true
	if at := time.Now().Add(deafLasts); l.due.IsZero() || at.Before(l.due) {
		l.due = at
	}
	l.status.State.IdleSince = time.Time{}
	l.publishUse()
}

// publishUse says at once that the server has been used, also to a worker that is started after this one.
func (l *Loop) publishUse() {
	l.status.State.LastActivity = later(l.status.State.LastActivity, l.memory.used)
	l.remember()
	l.parts.Observer.Publish(l.status)
}
