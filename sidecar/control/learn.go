package control

import (
	"context"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

const (
	// lessonTakes is how far two lessons are apart at least: a scrape and the looks that show what it added.
	lessonTakes = 4 * time.Second
	// lessonsAtOnce is how many there are in a row, for two minutes if somebody comes every five seconds: the exporter remembers for
	// thirty seconds what it has asked the databases, or for as long as the Cluster says, and does not log in meanwhile.
	lessonsAtOnce = 24
	// lessonsAnew is when it is tried again after these have taught nothing.
	lessonsAnew = time.Hour
	// settlesAtOnce is how many looks in a row may be taken to see the counters at rest, after one that showed use or nothing. A scrape
	// takes part of a second.
	settlesAtOnce = 5
)

// lessons are the attempts to learn by how much a scrape of the operator's exporter makes the counters rise. It need not be known
// while nobody comes whose sessions must be told from that.
type lessons struct {
	taken      int
	begun      time.Time
	inProgress bool
	close      int // looks in a row by which a rise went on that is to be learned from
}

// settling tells whether another look is to show where the counters rest, before somebody comes whose sessions must be told from a
// burst that was going on when this one was taken.
func (l *Loop) settling() bool {
	if l.account.Settled() || !l.status.Known || l.status.InUse {
		l.settles = 0
		return false
	}
	l.settles++
	return l.settles <= settlesAtOnce
}

// learn has the exporter scraped where that helps, and asks for the looks that show what it added.
func (l *Loop) learn(ctx context.Context) {
	now := time.Now()
	since := now.Sub(l.lessons.begun)
	l.lessons.inProgress = l.account.Rising() && since < lessonTakes
	if l.account.Rising() && !l.account.Certain() && l.memory.doubt {
		l.lessons.close++
	} else {
		l.lessons.close = 0
	}
	switch {
	case l.account.Certain():
		l.lessons.taken = 0
		return
	case !l.status.Known || !l.status.Reported || !l.mayConnect() || l.quietNow() || l.status.Decision.Action != idle.ActionNone || !l.account.Curious():
		return
	case since < lessonTakes || l.lessons.taken >= lessonsAtOnce && since < lessonsAnew:
		return
	case l.lessons.taken >= lessonsAtOnce:
		l.lessons.taken = 0
	}
	if !l.listening.running() {
		l.parts.Sampler.Close() // a session would hold a shutdown up meanwhile
	}
	l.lessons.taken++
	l.lessons.begun, l.lessons.inProgress = now, true
	err := l.parts.Exporter.Scrape(ctx, l.status.View.ExporterTLS)
	l.parts.Logger.Debug("the exporter was scraped to learn what that adds to the counters", "error", err)
}
