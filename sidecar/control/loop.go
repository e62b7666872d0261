package control

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
)

const (
	// drainLasts is after how long a drain ends by itself when PostgreSQL still accepts sessions: a preStop hook of a pod
	// that was not stopped after all.
	drainLasts = time.Minute
	// quietLasts is for how long no session is kept after a change of the Cluster's specification. It may make the instance
	// restart in place, with PostgreSQL's smart mode and no preStop hook: a session would hold that up until it is noticed.
	quietLasts = 10 * time.Second
	// knockEvery is how often the server is asked whether it is shutting down while a session is held.
	knockEvery = 2 * time.Second
	// lookApart is the least time between two looks that something other than the passing of time asks for.
	lookApart = time.Second
	// closeApart is that time while the counters rise and it is not known what a burst is: one that is over before the next session
	// in doubt ends teaches what it is. closeLooks is how many looks in a row are as close.
	closeApart, closeLooks = 250 * time.Millisecond, 8
)

// Parts are what the loop works with.
type Parts struct {
	Sampler    Sampler
	Server     Server
	Listen     Listen
	Kubernetes Kubernetes
	Siblings   Siblings
	Evidence   Evidence
	// Introductions are what the wake gateway says of the sessions that it passes on.
	Introductions Introductions
	Exporter      Exporter
	Farewell      Farewell
	Observer      Observer
	Logger        *slog.Logger
	// OpenTerminator opens a session that may end others.
	OpenTerminator func(ctx context.Context) (Terminator, error)
	// OpenReports begins to listen to the kernel.
	OpenReports func() (Reports, error)
	// Pod is the name of this instance, and PodUID the UID of the pod.
	Pod, PodUID string
}

// Loop looks, decides and acts for one instance.
type Loop struct {
	parts   Parts
	views   chan kubernetes.View
	mailbox *mailbox
	ears    ears

	status    Status
	lastError string
	listening listening
	attempt   retry
	resuming  resuming
	told      told
	backups   backupCheck
	wish      wish
	memory    memory
	account   activity.Account
	lessons   lessons
	refused   activity.Refused
	settles   int              // looks in a row that did not show the counters at rest
	own       map[string]int64 // how often the listener has logged in, by database
	requested time.Time        // the newest request to sleep since the last look
	quiet     time.Time        // until then no session is kept
	switched  time.Time        // when the switch was turned on by this process
	due       time.Time        // of the next look; zero: none
	looked    time.Time        // when the last look began
	reading   time.Time        // when the look began to read the counters whose reports are waited for; zero: none is
	knocked   time.Time        // when the server was last asked
	restored  bool             // the evidence of an earlier worker was looked at

	mutex   sync.Mutex
	drained time.Time // zero: not drained
	hangUp  context.CancelFunc
}

// memory is what is kept from one look to the next.
type memory struct {
	used      time.Time        // the newest proof of a use since the last look
	gap       bool             // something may have come and gone unseen since the last look
	uncertain []activity.Ended // sessions that ended of which the counters must tell what they were
	late      []activity.Ended // such ones that ended after the counters were read
	former    []activity.Ended // such ones of the look before
	others    bool             // clients that do not count have logged in
	doubt     bool             // the counters cannot tell yet
	ledger    activity.Ledger
	started   int64
	changed   int64 // the newest change of the state of a resting session, in microseconds since 1970
	standing  []idle.Reason
	doomed    []activity.Doomed
}

// New makes a loop; Run runs it.
func New(parts Parts) *Loop {
	return &Loop{
		parts: parts,
		views: make(chan kubernetes.View, 1), // of views only the newest matters
		// A few reports are enough to know that the server is in use; more wait in the kernel, which says when it drops some.
		ears: ears{heard: make(chan batch, 16)}, mailbox: newMailbox(),
		own:      map[string]int64{},
		resuming: resuming{pending: true},
		hangUp:   func() {},
	}
}

// See gives the loop the newest state of its Cluster. Only one goroutine may call it.
func (l *Loop) See(v kubernetes.View) {
	select {
	case <-l.views:
	default:
	}
	l.views <- v
}

// Drain closes every database session at once and keeps them closed. It may be called from any goroutine.
func (l *Loop) Drain() {
	l.mutex.Lock()
	l.drained = time.Now()
	l.mutex.Unlock()
	l.closeSessions()
}

// closeSessions hangs up: the sampler's session and the listener's.
func (l *Loop) closeSessions() {
	l.mutex.Lock()
	hangUp := l.hangUp
	l.mutex.Unlock()
	hangUp()
	l.parts.Sampler.Close()
}

func (l *Loop) drainedSince() time.Time {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.drained
}

// Run works until the context ends; then every session is closed at once.
func (l *Loop) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, l.closeSessions)
	defer stop()
	defer l.leave()
	defer l.stopListening()
	defer l.closeSessions()
	l.stay() // an earlier worker may have left something
	l.step(ctx)
	timer := time.NewTimer(time.Until(l.next()))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case v := <-l.views:
			changed := !l.status.ViewKnown || v.ResourceVersion != l.status.View.ResourceVersion
			l.see(v)
			if !l.mayConnect() || l.quietNow() {
				l.closeSessions()
			}
			if changed {
				l.soon()
			}
		case b := <-l.ears.heard:
			l.hear(b)
		case <-l.mailbox.arrived:
			l.obey(ctx)
		case <-timer.C:
			if l.isDue() {
				l.step(ctx)
			} else {
				l.knock(ctx)
			}
		}
		timer.Reset(time.Until(l.next()))
	}
}

// far is a wait that something else will end.
const far = time.Hour

// next is when the loop has something to do.
func (l *Loop) next() time.Time {
	at := l.due
	if at.IsZero() {
		at = time.Now().Add(far)
	}
	if knock := l.knocked.Add(knockEvery); l.held() && knock.Before(at) {
		at = knock
	}
	return at
}

func (l *Loop) isDue() bool { return !l.due.IsZero() && !time.Now().Before(l.due) }

// soon brings the next look forward.
func (l *Loop) soon() {
	at, apart := time.Now(), lookApart
	if l.lessons.close != 0 && l.lessons.close <= closeLooks {
		apart = closeApart
	}
	if earliest := l.looked.Add(apart); earliest.After(at) {
		at = earliest
	}
	if l.due.IsZero() || at.Before(l.due) {
		l.due = at
	}
}

// held tells whether a database session is kept.
func (l *Loop) held() bool { return l.listening.running() || l.status.Known && !l.status.Reported }

// knock looks whether the server is shutting down, and hangs up if it is.
func (l *Loop) knock(ctx context.Context) {
	if !l.held() || l.accepting(ctx) {
		return
	}
	l.closeSessions()
	l.due = time.Now()
}

// see takes a view of the Cluster in.
func (l *Loop) see(v kubernetes.View) {
	was := l.status.View
	if !l.status.ViewKnown || was.Hibernating && !v.Hibernating || was.CurrentPrimary != l.parts.Pod && v.CurrentPrimary == l.parts.Pod {
		l.resuming.ask()
	}
	if l.status.ViewKnown && was.Generation != v.Generation {
		l.quiet = time.Now().Add(quietLasts)
	}
	l.status.View, l.status.ViewKnown = v, true
	l.ears.meet(v.Addresses, time.Now())
	l.parse(time.Now())
}

// parse reads the annotations. What was asked for over the channel holds before it is written there.
func (l *Loop) parse(now time.Time) {
	l.status.Policy, l.status.Problems = idle.ParsePolicy(l.status.View.Annotations, now)
	l.wish.apply(&l.status.Policy)
}

// step looks once, decides, and acts. Before the Cluster has been seen there is nothing to decide.
func (l *Loop) step(ctx context.Context) {
	if !l.status.ViewKnown {
		l.status.Decision = idle.Decision{Reason: idle.ReasonUnknown, Blockers: []idle.Reason{idle.ReasonUnknown}}
		l.parts.Observer.Publish(l.status)
		return
	}
	announced := l.status.View.Annotations[idle.KeyAnnounced]
	l.parse(time.Now())
	l.grant(ctx)
	seen := l.look(ctx)
	now := time.Now()
	l.recheckBackups(ctx, now)
	l.decide(&seen, now)
	if l.status.Decision.Action == idle.ActionAsk {
		seen.Elsewhere = elsewhere(l.ask(ctx), now, l.parts.Logger)
		now = time.Now()
		l.decide(&seen, now)
	}
	l.listenOrNot(ctx)
	l.tell(ctx, now)
	switch {
	case l.status.Decision.Action != idle.ActionHibernate:
		l.resume(ctx, now)
	case l.attempt.tooSoon(now):
		l.postpone()
		l.resume(ctx, now)
	default:
		l.sleep(ctx)
	}
	l.learn(ctx)
	l.finish(announced)
	l.reconsider(ctx)
	l.parts.Observer.Publish(l.status)
}

// finish plans the next look and leaves behind what others need.
func (l *Loop) finish(announced string) {
	l.due = l.status.Decision.Next
	if from := idle.UnderstoodFrom(l.status.Problems); !from.IsZero() {
		l.due = from
	}
	if !l.due.IsZero() && l.attempt.next.After(time.Now()) && l.attempt.next.Before(l.due) {
		l.due = l.attempt.next
	}
	if l.quietNow() && l.quiet.Before(l.due) {
		l.due = l.quiet
	}
	if l.wish.pending && (l.due.IsZero() || l.wish.retry.next.Before(l.due)) {
		l.due = l.wish.retry.next
	}
	if !l.listening.running() && l.status.Reported {
		l.parts.Sampler.Close() // the next look is far away, and a session would hold a shutdown up until it is noticed
	}
	if !l.memory.doubt && l.status.Known {
		l.status.Confirmed = announced
	}
	if l.memory.doubt || l.lessons.inProgress || l.settling() {
		l.soon()
	}
	l.status.ListenerConnected = l.listening.connected()
	l.remember()
}

// decide takes the look in, with what the Cluster and its Backups say.
func (l *Loop) decide(seen *idle.Observation, now time.Time) {
	before := l.status.Decision.Reason
	seen.Blockers = l.blockers()
	seen.Siblings = l.siblingCount()
	l.status.State, l.status.Decision = idle.Decide(l.status.Policy, len(l.status.Problems) != 0, l.status.State, *seen, now)
	l.status.InUse = len(seen.InUse) != 0
	if l.status.InUse || seen.Unknown {
		l.attempt = retry{} // the next time is a new one
	}
	if reason := l.status.Decision.Reason; reason != before && l.status.Decision.Action != idle.ActionAsk {
		l.parts.Logger.Info("the decision has changed", "reason", reason, "before", before)
	}
}

// blockers is what the Cluster, its Backups and the server say against sleep.
func (l *Loop) blockers() []idle.Reason {
	blockers := slices.Concat(l.status.View.Blockers(l.parts.Pod), l.memory.standing)
	if l.backups.running {
		blockers = append(blockers, idle.ReasonBackupRunning)
	}
	if l.memory.doubt {
		blockers = append(blockers, idle.ReasonUnknown)
	}
	return blockers
}

// mayConnect tells whether database sessions may be held, the server's own answer aside.
func (l *Loop) mayConnect() bool {
	v := l.status.View
	return l.status.ViewKnown && l.status.Policy.Enabled && len(l.status.Problems) == 0 && v.PluginListed && v.Healthy &&
		!v.Hibernating && l.drainedSince().IsZero()
}

// quietNow tells whether sessions are opened for a look only.
func (l *Loop) quietNow() bool { return time.Now().Before(l.quiet) }
