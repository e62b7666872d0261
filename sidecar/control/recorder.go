package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/doze"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
	"github.com/cnpg-i/scale-to-zero/sidecar/process"
)

// recorder writes the Events for people, each once. It writes them one after the other, concurrently with the loop.
type recorder struct {
	pod    string
	logger *slog.Logger
	record func(context.Context, kubernetes.View, kubernetes.Event, time.Time) error

	problems  string               // the invalid annotations
	ignored   string               // the item of ignore that covers an instance, as last written
	noDoze    []idle.Reason        // why the cluster cannot doze, as last written
	blocked   map[idle.Reason]bool // the reasons that have had an Event since the threshold passed
	refused   string               // the database and the code of a refused LISTEN
	slots     bool                 // whether there were logical slots without a reader
	written   chan struct{}        // closed when the newest Event is written
	newest    time.Time            // of an Event
	unwritten sync.WaitGroup
}

const (
	// eventTries is how often an Event is written at most. The waits between the tries double, starting at eventWait.
	eventTries = 6
	eventWait  = time.Second
	// eventGrace is how long Events may still be written after the worker was told to stop: the pod of a cluster that was
	// just put to sleep is deleted within a second. The waits between the tries are then eventLastWait.
	eventGrace    = 2 * time.Second
	eventLastWait = 200 * time.Millisecond
)

// write writes an Event after the previous ones. An Event that is still pending when the context ends may be written
// within eventGrace.
func (r *recorder) write(ctx context.Context, v kubernetes.View, kind kubernetes.EventType, reason, message string) {
	at, before, done := time.Now(), r.written, make(chan struct{})
	if !at.After(r.newest) { // the time is part of the name
		at = r.newest.Add(1)
	}
	r.written, r.newest = done, at
	r.unwritten.Go(func() {
		defer close(done)
		graced, cancel := withGrace(ctx, eventGrace)
		defer cancel()
		if before != nil {
			<-before
		}
		event := kubernetes.Event{Type: kind, Reason: reason, Message: message}
		if err := r.tryToRecord(ctx, graced, v, event, at); err != nil {
			r.logger.Warn("cannot write an Event", "reason", reason, "error", err.Error())
		}
	})
}

// tryToRecord sends an Event, at most eventTries times, until the API server has accepted or refused it, or until
// graced ends, which outlives ctx.
func (r *recorder) tryToRecord(ctx, graced context.Context, v kubernetes.View, e kubernetes.Event, at time.Time) error {
	for try, wait := 1, eventWait; ; try, wait = try+1, 2*wait {
		err := r.record(graced, v, e, at)
		if err == nil || !mayBeRepeated(err) || try == eventTries {
			return err
		}
		if !process.Pause(ctx, wait) && !process.Pause(graced, eventLastWait) {
			return err
		}
	}
}

// mayBeRepeated reports whether the API server may accept the same Event later.
func mayBeRepeated(err error) bool {
	var refused *kubernetes.RefusedError
	if errors.As(err, &refused) {
		return refused.Code == http.StatusTooManyRequests
	}
	return true
}

// withGrace returns a context that ends some time after its parent.
func withGrace(parent context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, func() {
		process.Pause(ctx, grace)
		cancel()
	})
	return ctx, func() { stop(); cancel() }
}

// decided writes an Event once for each set of invalid annotations and of reasons against a doze, and once for each
// reason that keeps an idle cluster awake and each idle period. Only the primary does.
func (r *recorder) decided(ctx context.Context, s Status) {
	if s.View.CurrentPrimary != r.pod {
		return
	}
	r.writeProblems(ctx, s)
	r.warnOfIgnore(ctx, s)
	r.writeDozeBlockers(ctx, s)
	r.warnOfSlots(ctx, s)
	if !s.Decision.ThresholdPassed {
		r.blocked = nil
		return
	}
	for _, reason := range s.Decision.Blockers {
		if r.blocked[reason] {
			continue
		}
		if r.blocked == nil {
			r.blocked = map[idle.Reason]bool{}
		}
		r.blocked[reason] = true
		message := fmt.Sprintf("Idle since %s, but kept awake (%s): %s", s.State.IdleSince.UTC().Format(time.RFC3339), reason, reason.Description())
		if reason == idle.ReasonServiceUnroutable {
			message += ": " + s.View.Annotations[contract.AnnotationUnroutableServices]
		}
		if reason == idle.ReasonClientsReturn {
			message += fmt.Sprintf(": user %q at %s", s.Returning.User, s.Returning.Client)
		}
		r.write(ctx, s.View, kubernetes.EventNormal, "SleepBlocked", message)
	}
}

func (r *recorder) writeProblems(ctx context.Context, s Status) {
	lines := make([]string, 0, len(s.Problems))
	for _, problem := range s.Problems {
		lines = append(lines, problem.String())
	}
	message := strings.Join(lines, "; ")
	if message == r.problems {
		return
	}
	r.problems = message
	if message == "" {
		return
	}
	r.logger.Warn("invalid annotations; the feature is off", "problems", lines)
	r.write(ctx, s.View, kubernetes.EventWarning, "InvalidAnnotation", "Scale to zero is off: "+message)
}

// warnOfIgnore warns about an item of the ignore annotation that probably covers the clients' pods.
func (r *recorder) warnOfIgnore(ctx context.Context, s Status) {
	item := s.IgnoredPods()
	if item != "" && item != r.ignored {
		r.write(ctx, s.View, kubernetes.EventWarning, "PodsIgnored",
			"The annotation "+contract.AnnotationIgnore+" probably covers every pod, so that none keeps the cluster awake or wakes it: "+item)
	}
	r.ignored = item
}

// writeDozeBlockers says why a cluster that is to doze hibernates instead.
func (r *recorder) writeDozeBlockers(ctx context.Context, s Status) {
	var reasons []idle.Reason
	if s.Policy.Enabled {
		reasons = s.Decision.DozeBlockers
	}
	if slices.Equal(reasons, r.noDoze) {
		return
	}
	r.noDoze = slices.Clone(reasons)
	if len(reasons) == 0 {
		return
	}
	names, descriptions := make([]string, 0, len(reasons)), make([]string, 0, len(reasons))
	for _, reason := range reasons {
		names, descriptions = append(names, string(reason)), append(descriptions, reason.Description())
	}
	r.write(ctx, s.View, kubernetes.EventNormal, "DozeBlocked", fmt.Sprintf(
		"doze-minutes is set, but the cluster does not doze for now (%s): %s",
		strings.Join(names, ", "), strings.Join(descriptions, "; ")))
}

// warnOfSlots warns about logical slots without a reader: they retain WAL, asleep as well as awake.
func (r *recorder) warnOfSlots(ctx context.Context, s Status) {
	if !s.Known {
		return
	}
	inactive := s.InactiveSlots != 0
	if inactive && !r.slots {
		r.write(ctx, s.View, kubernetes.EventWarning, "InactiveLogicalSlot",
			fmt.Sprintf("Logical replication slots without a reader retain WAL: %d; they do not keep the cluster awake", s.InactiveSlots))
	}
	r.slots = inactive
}

// listenFailed writes an Event when PostgreSQL refuses LISTEN, because a person has to fix the cause. It writes another
// one only if the cause has changed, or if LISTEN has succeeded in between.
func (r *recorder) listenFailed(ctx context.Context, v kubernetes.View, err error, connected bool) {
	if connected {
		r.refused = ""
	}
	var refused *postgres.RefusedError
	if !errors.As(err, &refused) || r.refused == refused.Database+refused.Code || v.CurrentPrimary != r.pod {
		return
	}
	r.refused = refused.Database + refused.Code
	r.write(ctx, v, kubernetes.EventWarning, "ListenRefused",
		fmt.Sprintf("PostgreSQL refuses LISTEN for channel %s of database %q (SQLSTATE %s); the sidecar still observes sessions",
			postgres.Channel, refused.Database, refused.Code))
}

// growthRefused writes an Event when the requests could not be raised after a doze: on a full node, PostgreSQL would
// get too little.
func (r *recorder) growthRefused(ctx context.Context, v kubernetes.View, err error) {
	r.write(ctx, v, kubernetes.EventWarning, "GrowthRefused",
		"Cannot restore the requests of PostgreSQL's container after the doze, retrying: "+err.Error())
}

// restartFailed writes an Event for a failure that was recorded.
func (r *recorder) restartFailed(ctx context.Context, v kubernetes.View) {
	r.write(ctx, v, kubernetes.EventWarning, "RestartFailed",
		"PostgreSQL was not started within "+doze.StartTimeout.String()+" after a doze; the plugin deletes pod "+r.pod+
			", once, so that the operator creates it again")
}

// resumed reports what happened to the schedules. One that stays suspended makes no backups, and a person must know.
func (r *recorder) resumed(ctx context.Context, v kubernetes.View, resumed kubernetes.Resumed) {
	if resumed.Changed == 0 {
		return
	}
	r.logger.Info("the ScheduledBackups are resumed", "resumed", resumed.Changed-len(resumed.Left), "left", resumed.Left)
	if count := resumed.Changed - len(resumed.Left); count > 0 {
		r.write(ctx, v, kubernetes.EventNormal, "Resumed", fmt.Sprintf("ScheduledBackups resumed: %d", count))
	}
	if len(resumed.Left) != 0 {
		r.write(ctx, v, kubernetes.EventWarning, "ScheduleLeftSuspended",
			fmt.Sprintf("ScheduledBackups stay suspended, because spec.suspend was set by another client during the sleep: %s", strings.Join(resumed.Left, ", ")))
	}
}
