package monitor

import (
	"context"
	"log/slog"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// sessions is what the samples have shown of the sessions, and what has happened since the newest one.
type sessions struct {
	sampler  Sampler
	observer Observer
	logger   *slog.Logger

	held    bool            // whether the sampler's session stays open between samples
	failure string          // error of the newest sample
	status  Status          // as far as samples show it
	newest  postgres.Sample // only the server's start if the newest sample failed

	// Since the newest sample:
	used      time.Time // newest proof of use
	gap       bool      // whether a session may have come and gone unseen
	requested time.Time // newest request to sleep
}

// read samples the sessions.
func (s *sessions) read(ctx context.Context, rules activity.Rules) (postgres.Sample, error) {
	start := time.Now()
	sample, err := s.sampler.Sample(ctx, rules)
	s.observer.Sampled(time.Since(start), err)
	s.logFailure(err)
	return sample, err
}

// logFailure logs an error unless the previous sample failed with the same one.
func (s *sessions) logFailure(err error) {
	message := ""
	if err != nil {
		message = err.Error()
	}
	if message == s.failure {
		return
	}
	s.failure = message
	if err != nil {
		s.logger.Warn("cannot sample the sessions", "error", message)
	} else {
		s.logger.Info("the sessions can be sampled again")
	}
}

// unknown returns an unknown observation.
func (s *sessions) unknown(watching bool) idle.Observation {
	s.held, s.status.Known, s.status.ServerBlockers = false, false, nil
	s.newest, s.gap = postgres.Sample{Started: s.newest.Started}, s.gap || !watching
	return idle.Observation{Unknown: true, Reported: watching}
}

// observe combines a sample with what has happened since the previous one.
func (s *sessions) observe(sample postgres.Sample, reported bool) idle.Observation {
	before := s.newest
	seen := idle.Observation{
		Began: sample.Began, Ended: sample.Ended,
		Started: time.UnixMicro(sample.Started), Checkpointed: time.UnixMicro(sample.Checkpointed),
		InUse: sample.Tally.InUse(), Used: s.used, Gap: s.gap || before.Started != 0 && before.Started != sample.Started,
		Reported: reported, Local: sample.Tally.Local(), Scheduler: sample.Scheduler,
		Requested: s.requested, Blockers: sample.Blockers,
	}
	if !reported && before.Ledger != nil && !before.Ledger.Same(sample.Ledger) {
		seen.Used = sample.Ended
	}
	if ago, ok := sample.Tally.LastUse(); ok {
		last := sample.Ended.Add(-ago)
		// The server's clock may have been set: a change since the previous sample is not older than that sample.
		if newestChange(sample) != newestChange(before) {
			last = later(last, before.Ended)
		}
		seen.Used = later(seen.Used, last)
	}
	s.newest, s.used, s.gap, s.requested = sample, time.Time{}, false, time.Time{}
	s.status.Known, s.status.Tally, s.status.SampledAt = true, sample.Tally, sample.Ended
	s.status.ServerBlockers, s.status.Scheduler, s.status.InactiveSlots = sample.Blockers, sample.Scheduler, sample.InactiveSlots
	return seen
}

// newestChange returns the newest state change of the sessions judged by their idle time, in microseconds since 1970.
func newestChange(sample postgres.Sample) int64 {
	newest := int64(0)
	for _, s := range sample.Tally.Terminable() {
		if s.Idle && !s.Infrastructure {
			newest = max(newest, s.Changed)
		}
	}
	return newest
}
