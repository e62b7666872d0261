package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/siblings"
)

const (
	// backupCheckEvery is how often the Backups are read while one of them is all that keeps the cluster awake.
	backupCheckEvery = 10 * time.Second
	// firstRetry and lastRetry bound the wait after an attempt that did not succeed.
	firstRetry, lastRetry = 2 * time.Second, 30 * time.Second
	// firstSiblingRetry and lastSiblingRetry bound it where another instance said no.
	firstSiblingRetry, lastSiblingRetry = 10 * time.Second, 5 * time.Minute
	// announcementLasts is after how long an announcement means nothing any more.
	announcementLasts = 30 * time.Second
	// acknowledgementTakes bounds the wait for the wake gateway. The rest of an announcement's time is for what comes after,
	// and the switch must be on before actBefore is all that remains: the gateway leaves when the announcement has passed.
	acknowledgementTakes, actBefore = 20 * time.Second, 2 * time.Second
	// confirmationTakes bounds the wait for the other instances to look once more, and confirmEvery spaces the questions.
	confirmationTakes, confirmEvery = 5 * time.Second, 200 * time.Millisecond
	// doubtTakes is for how long the last look is repeated: a scrape of the exporter takes part of a second, and a look must show that
	// it is over.
	doubtTakes = 4 * time.Second
)

var (
	errNoAddress    = errors.New("its address is not known")
	errNotConfirmed = errors.New("it has not looked since the announcement")
)

// retry spaces attempts.
type retry struct {
	wait   time.Duration
	next   time.Time
	reason idle.Reason // why the last one came to nothing, if another instance said so
}

func (r *retry) tooSoon(now time.Time) bool { return now.Before(r.next) }

// later puts the next attempt off, each time twice as long, from first to last.
func (r *retry) later(now time.Time, first, last time.Duration) {
	r.wait = min(max(2*r.wait, first), last)
	r.next = now.Add(r.wait)
}

// backupCheck remembers that a Backup was running.
type backupCheck struct {
	running bool
	until   time.Time
}

// due tells whether it is worth looking whether the Backup still runs.
func (b *backupCheck) due(now time.Time) bool { return b.running && !now.Before(b.until) }

// recheckBackups looks whether the Backup that keeps the cluster awake has ended. While that cannot be read, it has not.
func (l *Loop) recheckBackups(ctx context.Context, now time.Time) {
	if !l.backups.due(now) {
		return
	}
	running, err := l.parts.Kubernetes.RunningBackups(ctx)
	l.backups = backupCheck{running: err != nil || len(running) != 0, until: now.Add(backupCheckEvery)}
}

// changedMind says that an attempt was given up because something speaks against sleep after all.
type changedMind struct{ reason idle.Reason }

func (c changedMind) Error() string { return "not put to sleep: " + string(c.reason) }

// postpone says why an attempt that would be due is not made yet.
func (l *Loop) postpone() {
	l.status.Decision.Action = idle.ActionNone
	if reason := l.attempt.reason; reason != "" {
		l.status.Decision.Reason, l.status.Decision.Blockers = reason, []idle.Reason{reason}
	}
}

// sleep carries the decision out. What it did on the way is undone if it does not come to the switch.
func (l *Loop) sleep(ctx context.Context) {
	err := l.turnOn(ctx)
	now := time.Now()
	if err == nil {
		l.attempt = retry{}
		l.parts.Observer.Attempted(ResultSuccess)
		return
	}
	if ctx.Err() != nil {
		return
	}
	l.unannounce(ctx)
	var changed changedMind
	if !errors.As(err, &changed) {
		l.attempt.later(now, firstRetry, lastRetry)
	}
	switch {
	case changed.reason != "":
		if slices.Contains([]idle.Reason{idle.ReasonSiblingUnknown, idle.ReasonSiblingActive, idle.ReasonGatewayUnavailable}, changed.reason) {
			l.attempt.later(now, firstSiblingRetry, lastSiblingRetry) // each attempt writes, and they may go on to say no
			l.attempt.reason = changed.reason
		} else {
			l.attempt = retry{}
		}
		l.status.Decision.Action, l.status.Decision.Reason = idle.ActionNone, changed.reason
		if l.status.Decision.ThresholdPassed {
			l.status.Decision.Blockers = []idle.Reason{changed.reason}
			l.tell(ctx, now)
		}
		l.parts.Observer.Attempted(ResultAborted)
		l.parts.Logger.Info("the cluster is not put to sleep after all", "reason", changed.reason)
	case errors.Is(err, kubernetes.ErrConflict):
		l.parts.Observer.Attempted(ResultConflict)
		l.parts.Logger.Info("the Cluster changed while it was being put to sleep; trying again")
	default:
		l.parts.Observer.Attempted(ResultError)
		l.parts.Logger.Error("the cluster could not be put to sleep", "error", err.Error())
	}
	l.resume(ctx, now)
}

// turnOn goes the way from the decision to the switch, in this order: the Backups, the announcement, the wake gateway's
// acknowledgement, the ScheduledBackups, the Backups once more since a schedule may have started one, the Cluster as it is now, the other instances, the sessions as
// they are now, the switch, the sessions that do not count.
func (l *Loop) turnOn(ctx context.Context) error {
	if err := l.checkBackups(ctx); err != nil {
		return err
	}
	announcement, err := l.announce(ctx)
	if err != nil {
		return err
	}
	if err := l.awaitGateway(ctx, announcement); err != nil {
		return err
	}
	l.resuming.ask()
	suspended, err := l.parts.Kubernetes.SuspendBackups(ctx, time.Now())
	if err != nil {
		return fmt.Errorf("suspend the ScheduledBackups: %w", err)
	}
	if suspended != 0 {
		if err := l.checkBackups(ctx); err != nil {
			return err
		}
	}
	last, err := l.lookLast(ctx, announcement.text)
	if err != nil {
		return err
	}
	view, seen, terminator := last.view, last.seen, last.terminator
	defer terminator.Close()
	now := time.Now()
	l.decide(&seen, now)
	if l.status.Decision.Action != idle.ActionHibernate {
		return changedMind{l.status.Decision.Reason}
	}
	if !l.gatewayStands(announcement, now) {
		return changedMind{idle.ReasonGatewayUnavailable}
	}
	since := l.status.State.IdleSince
	reason := "idle since " + since.UTC().Format(time.RFC3339)
	if err := l.parts.Farewell.Leave(); err != nil {
		l.parts.Logger.Warn("PostgreSQL will not wait for the nodes before it shuts down", "error", err.Error())
	}
	if err := l.parts.Kubernetes.Hibernate(ctx, view, now, reason); err != nil {
		l.stay()
		return err
	}
	l.switched = time.Now()
	l.status.View.Hibernating, l.status.View.Ours, l.status.View.Hibernation = true, false, ""
	ended := l.terminate(ctx, terminator)
	terminator.Close()
	l.closeSessions()
	l.parts.Logger.Info("the cluster is put to sleep", "idleSince", since, "suspended", suspended, "terminated", ended)
	l.parts.Kubernetes.Record(ctx, view, kubernetes.Event{
		Type: kubernetes.EventNormal, Reason: "Hibernated",
		Message: fmt.Sprintf("Put to sleep: idle since %s, for the threshold of %s; suspended ScheduledBackups: %d; ended sessions that do not count: %d",
			since.UTC().Format(time.RFC3339), l.status.Policy.Threshold, suspended, ended),
	}, now)
	return nil
}

// lastLook is what the switch is decided by, and the session that is opened for what comes after it.
type lastLook struct {
	view       kubernetes.View
	seen       idle.Observation
	terminator Terminator
}

// lookLast takes the last look, again after a second for as long as the counters are about to tell what sessions were that have
// ended: to begin with an announcement anew would take longer.
func (l *Loop) lookLast(ctx context.Context, announcement string) (lastLook, error) {
	for deadline := time.Now().Add(doubtTakes); ; {
		last, err := l.lookOnceMore(ctx, announcement)
		if err != nil || !l.memory.doubt || ctx.Err() != nil || !time.Now().Before(deadline) {
			return last, err
		}
		last.terminator.Close()
		timer := time.NewTimer(lookApart)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// lookOnceMore asks the other instances, reads the Cluster and looks at the sessions. No session is opened while the others are
// waited for: a shutdown would wait for it.
func (l *Loop) lookOnceMore(ctx context.Context, announcement string) (lastLook, error) {
	answers := l.confirm(ctx, announcement)
	terminator, err := l.prepareToTerminate(ctx)
	if err != nil {
		return lastLook{}, err
	}
	view, err := l.parts.Kubernetes.Get(ctx)
	if err == nil && view.UID != l.status.View.UID {
		err = changedMind{idle.ReasonUnknown}
	}
	if err != nil {
		terminator.Close()
		return lastLook{}, err
	}
	l.see(view)
	seen := l.look(ctx)
	seen.Elsewhere = elsewhere(answers, time.Now(), l.parts.Logger)
	return lastLook{view, seen, terminator}, nil
}

// stay takes the farewell back: the pod is not deleted to sleep.
func (l *Loop) stay() {
	if err := l.parts.Farewell.TakeBack(); err != nil {
		l.parts.Logger.Warn("the next end of the pod may take two seconds longer", "error", err.Error())
	}
}

// announcement says that the cluster is about to sleep.
type announcement struct {
	text     string // empty: there was nobody to tell
	deadline time.Time
}

// announce tells the other instances, so that each looks once more, and the wake gateway, so that it takes over.
func (l *Loop) announce(ctx context.Context) (announcement, error) {
	if l.siblingCount() == 0 && l.status.Policy.Manual {
		return announcement{}, nil
	}
	a := announcement{deadline: time.Now().Add(announcementLasts)}
	a.text = l.parts.PodUID + " " + a.deadline.UTC().Format(time.RFC3339Nano)
	err := l.parts.Kubernetes.Annotate(ctx, l.status.View, idle.KeyAnnounced, &a.text)
	if err != nil {
		return announcement{}, fmt.Errorf("announce: %w", err)
	}
	return a, nil
}

// awaitGateway waits until the wake gateway has acknowledged the announcement: what could not be woken is not put to sleep. A
// use meanwhile ends the wait.
func (l *Loop) awaitGateway(ctx context.Context, a announcement) error {
	timer := time.NewTimer(acknowledgementTakes)
	defer timer.Stop()
	knock := time.NewTicker(knockEvery)
	defer knock.Stop()
	for !l.acknowledged(a) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the wake gateway: %w", context.Cause(ctx))
		case v := <-l.views:
			l.see(v)
			if !l.mayConnect() {
				l.closeSessions()
				return changedMind{idle.ReasonUnknown}
			}
		case b := <-l.ears.heard:
			l.hear(b)
		case <-l.mailbox.arrived:
			l.obey(ctx)
		case <-knock.C:
			l.knock(ctx)
		case <-timer.C:
			return changedMind{idle.ReasonGatewayUnavailable}
		}
		if !l.memory.used.IsZero() || l.ears.deaf {
			return changedMind{idle.ReasonActive}
		}
	}
	return nil
}

// acknowledged tells whether the wake gateway stands ready for exactly this announcement, or is not needed.
func (l *Loop) acknowledged(a announcement) bool {
	return l.status.Policy.Manual || l.status.View.Annotations[idle.KeyGatewayReady] == a.text
}

// gatewayStands tells whether the wake gateway, if it is needed, will still stand ready when the switch is on.
func (l *Loop) gatewayStands(a announcement, now time.Time) bool {
	return l.status.Policy.Manual || l.acknowledged(a) && a.text != "" && now.Before(a.deadline.Add(-actBefore))
}

// confirm asks the other instances until each has looked once more, for a while.
func (l *Loop) confirm(ctx context.Context, announcement string) []siblings.Answer {
	if l.siblingCount() == 0 {
		return nil
	}
	deadline := time.Now().Add(confirmationTakes)
	for {
		answers := l.ask(ctx)
		late := slices.IndexFunc(answers, func(a siblings.Answer) bool { return a.Err != nil || !confirms(a, announcement) })
		if late < 0 {
			return answers
		}
		if ctx.Err() != nil || !time.Now().Before(deadline) {
			for i := range answers { // what they saw before may be over
				if answers[i].Err == nil && !confirms(answers[i], announcement) {
					answers[i].Err = errNotConfirmed
				}
			}
			return answers
		}
		timer := time.NewTimer(confirmEvery)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// confirms tells whether the instance has looked since the announcement; nobody has if nothing was announced.
func confirms(a siblings.Answer, announcement string) bool {
	return announcement != "" && a.Report.Confirmed == announcement
}

// unannounce takes an announcement back that led to nothing.
func (l *Loop) unannounce(ctx context.Context) {
	view, err := l.parts.Kubernetes.Get(ctx)
	if err != nil || !strings.HasPrefix(view.Annotations[idle.KeyAnnounced], l.parts.PodUID+" ") {
		return
	}
	if err := l.parts.Kubernetes.Annotate(ctx, view, idle.KeyAnnounced, nil); err != nil {
		l.parts.Logger.Warn("the announcement could not be taken back; it ends by itself", "error", err.Error())
	}
}

// noTerminator is for a server without sessions that do not count.
type noTerminator struct{}

func (noTerminator) Terminate(context.Context, []activity.Doomed) (int, error) { return 0, nil }
func (noTerminator) Close()                                                    {}

// prepareToTerminate opens a session, if it will be needed, while the server still accepts one.
func (l *Loop) prepareToTerminate(ctx context.Context) (Terminator, error) {
	if len(l.memory.doomed) == 0 {
		return noTerminator{}, nil
	}
	terminator, err := l.parts.OpenTerminator(ctx)
	if err != nil {
		return nil, fmt.Errorf("prepare to end the sessions that do not count: %w", err)
	}
	return terminator, nil
}

// terminate ends the sessions that do not count. That it fails makes the shutdown slow, and nothing worse.
func (l *Loop) terminate(ctx context.Context, terminator Terminator) int {
	ended, err := terminator.Terminate(ctx, l.memory.doomed)
	if err != nil {
		l.parts.Logger.Warn("the sessions that do not count could not be ended; the shutdown waits for them", "error", err.Error())
	}
	return ended
}

// checkBackups gives up while a Backup runs.
func (l *Loop) checkBackups(ctx context.Context) error {
	running, err := l.parts.Kubernetes.RunningBackups(ctx)
	if err != nil {
		return err
	}
	l.backups = backupCheck{running: len(running) != 0, until: time.Now().Add(backupCheckEvery)}
	if l.backups.running {
		return changedMind{idle.ReasonBackupRunning}
	}
	return nil
}
