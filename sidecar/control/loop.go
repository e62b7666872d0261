package control

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// drainLasts is after how long a drain ends by itself when PostgreSQL still accepts sessions: a preStop hook of a pod that
// was not stopped after all.
const drainLasts = time.Minute

// quietLasts is for how long no session is kept after a change of the Cluster's specification. It may make the instance
// restart in place, with PostgreSQL's smart mode and no preStop hook: a session would hold that up until it is noticed.
const quietLasts = 10 * time.Second

// Parts are what the loop works with.
type Parts struct {
	Sampler    Sampler
	Server     Server
	Listen     Listen
	Kubernetes Kubernetes
	Observer   Observer
	Logger     *slog.Logger
	// Pod is the name of this instance.
	Pod string
}

// Loop looks, decides and acts for one instance.
type Loop struct {
	parts   Parts
	views   chan kubernetes.View
	notices chan notice

	status    Status
	lastError string
	listening listening
	attempt   retry
	resuming  resuming
	told      told
	backups   backupCheck
	notified  time.Time
	quiet     time.Time // until then no session is kept

	mutex   sync.Mutex
	drained time.Time // zero: not drained
	hangUp  context.CancelFunc
}

// notice is a notification, or the news that the listener failed.
type notice struct {
	kind postgres.Kind
	at   time.Time
	err  error
}

// New makes a loop; Run runs it.
func New(parts Parts) *Loop {
	return &Loop{
		parts: parts,
		// Of views only the newest matters. Of notices a few may be lost in a storm: each says the same.
		views: make(chan kubernetes.View, 1), notices: make(chan notice, 16),
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
	defer l.stopListening()
	defer l.closeSessions()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case v := <-l.views:
			l.see(v)
			if !l.mayConnect() || l.quietNow() {
				l.closeSessions()
			}
			if !l.status.Decision.Next.IsZero() {
				continue // the next look is at most two seconds away and takes the change in
			}
		case n := <-l.notices:
			l.note(ctx, n)
			continue
		case <-timer.C:
		}
		l.step(ctx)
		if next := l.status.Decision.Next; !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
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
	l.status.Policy, l.status.Problems = idle.ParsePolicy(v.Annotations)
}

// note takes a notification in.
func (l *Loop) note(ctx context.Context, n notice) {
	if n.err != nil {
		l.listenFailed(ctx, n.err)
		return
	}
	l.parts.Observer.Notified(n.kind)
	switch n.kind {
	case postgres.KindActivity, postgres.KindBacklog:
		l.notified = n.at
	case postgres.KindMalformed:
		l.parts.Logger.Warn("a notification is not understood and was not obeyed", "channel", postgres.Channel)
	}
}

// noteWaiting takes in the notifications that have arrived: what came before the end of a look belongs to it.
func (l *Loop) noteWaiting(ctx context.Context) {
	for {
		select {
		case n := <-l.notices:
			l.note(ctx, n)
		default:
			return
		}
	}
}

// step looks once, decides, and acts. Before the Cluster has been seen there is nothing to decide.
func (l *Loop) step(ctx context.Context) {
	if !l.status.ViewKnown {
		l.status.Decision = idle.Decision{Reason: idle.ReasonUnknown, Blockers: []idle.Reason{idle.ReasonUnknown}}
		l.parts.Observer.Publish(l.status)
		return
	}
	seen := l.look(ctx)
	now := time.Now()
	l.recheckBackups(ctx, now)
	seen.Blockers = l.blockers()
	l.decide(seen, now)
	l.listenOrNot(ctx)
	l.tell(ctx, now)
	if l.status.Decision.Action == idle.ActionHibernate && !l.attempt.tooSoon(now) {
		l.sleep(ctx)
	} else {
		l.resume(ctx, now)
	}
	l.status.ListenerConnected = l.listening.connected()
	l.parts.Observer.Publish(l.status)
}

func (l *Loop) decide(seen idle.Observation, now time.Time) {
	before := l.status.Decision.Reason
	l.status.State, l.status.Decision = idle.Decide(l.status.Policy, len(l.status.Problems) != 0, l.status.State, seen, now)
	if reason := l.status.Decision.Reason; reason != before {
		l.parts.Logger.Info("the decision has changed", "reason", reason, "before", before)
	}
}

// blockers is what the Cluster and its Backups say against sleep.
func (l *Loop) blockers() []idle.Reason {
	blockers := l.status.View.Blockers(l.parts.Pod)
	if l.backups.running {
		blockers = append(blockers, idle.ReasonBackupRunning)
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

// look samples the instance if that is permitted; else, or if it fails, the observation is unknown.
func (l *Loop) look(ctx context.Context) idle.Observation {
	l.status.Known = false
	l.endDrain(ctx)
	if !l.mayConnect() || !l.accepting(ctx) {
		l.closeSessions()
		return idle.Observation{Unknown: true}
	}
	return l.sample(ctx)
}

// endDrain ends a drain that has lasted its time if PostgreSQL still accepts sessions.
func (l *Loop) endDrain(ctx context.Context) {
	since := l.drainedSince()
	if since.IsZero() || time.Since(since) < drainLasts || !l.accepting(ctx) {
		return
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.drained = time.Time{}
	l.parts.Logger.Info("the drain has ended: PostgreSQL still accepts sessions")
}

// accepting asks the server whether it accepts sessions.
func (l *Loop) accepting(ctx context.Context) bool {
	refusing, err := l.parts.Server.ShuttingDown(ctx)
	if err != nil {
		l.parts.Logger.Debug("the server cannot be asked", "error", err.Error())
	}
	return err == nil && !refusing
}

// sample looks at the sessions.
func (l *Loop) sample(ctx context.Context) idle.Observation {
	start := time.Now()
	sample, err := l.parts.Sampler.Sample(ctx, activity.Cluster{Instances: l.status.View.Instances})
	l.parts.Observer.Sampled(time.Since(start), err)
	l.logSampleError(err)
	if err != nil {
		return idle.Observation{Unknown: true}
	}
	if !l.drainedSince().IsZero() || l.quietNow() { // drained while it connected, or not to be kept
		l.closeSessions()
	}
	l.noteWaiting(ctx)
	l.status.Known, l.status.Tally, l.status.SampledAt = true, sample.Tally, sample.Ended
	seen := idle.Observation{Began: sample.Began, Ended: sample.Ended, Active: sample.Tally.Active(), Notified: l.notified}
	l.notified = time.Time{}
	return seen
}

// logSampleError logs an error when it is another than the last one.
func (l *Loop) logSampleError(err error) {
	message := ""
	if err != nil {
		message = err.Error()
	}
	if message == l.lastError {
		return
	}
	l.lastError = message
	if err != nil {
		l.parts.Logger.Warn("the sessions cannot be sampled", "error", message)
	} else {
		l.parts.Logger.Info("the sessions can be sampled again")
	}
}
