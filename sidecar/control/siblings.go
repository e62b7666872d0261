package control

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
)

// errNoAddress means that an instance cannot be asked.
var errNoAddress = errors.New("unknown address")

// ask asks the other instances of the cluster of a pod, for new samples or not. For one without a known address it
// returns errNoAddress.
func ask(ctx context.Context, siblings Siblings, v kubernetes.View, pod string, sample bool) []siblingAnswer {
	reachable := map[string]netip.Addr{}
	var answers []siblingAnswer
	for _, name := range v.Instances {
		if name == pod {
			continue
		}
		if address, ok := v.Addresses[name]; ok {
			reachable[name] = address
		} else {
			answers = append(answers, siblingAnswer{Pod: name, Err: errNoAddress})
		}
	}
	if len(reachable) == 0 {
		return answers
	}
	return append(answers, siblings.Ask(ctx, reachable, sample)...)
}

// elsewhere combines the answers. A missing answer is unknown, and so is one by different rules, because the watch of
// either instance may be ahead. An instance is idle only if it reports since when.
func elsewhere(answers []siblingAnswer, rules contract.ReportedRules, now time.Time, logger *slog.Logger) idle.Elsewhere {
	all := idle.Elsewhere{Asked: true}
	for _, answer := range answers {
		report := answer.Report
		all.Blockers = append(all.Blockers, serverBlockers(report)...)
		switch {
		case errors.Is(answer.Err, errOutdated), answer.Err == nil && !report.SamplesOnDemand:
			all.Blockers = append(all.Blockers, idle.ReasonSiblingOutdated)
		case answer.Err != nil:
			logger.Info("another instance did not answer", "instance", answer.Pod, "error", answer.Err.Error())
			all.Unknown = true
		case report.Known && report.Active:
			logger.Info("another instance is in use", "instance", answer.Pod,
				"lastActivity", report.LastActivity, "lastUnseenClient", report.LastUnseenClient)
			all.Active = true
		case report.Rules.Activity != rules.Activity, report.Rules.Ignore != rules.Ignore,
			!report.Known, report.IdleForSeconds == nil, *report.IdleForSeconds < 0:
			all.Unknown = true
		default:
			since := now.Add(-time.Duration(*report.IdleForSeconds * float64(time.Second)))
			all.IdleSince = later(all.IdleSince, since)
			all.Used = all.Used || !report.Unused
		}
	}
	return all
}

// serverBlockers returns the reasons of another instance's server against a shutdown. A newer sidecar may report
// unknown ones.
func serverBlockers(report contract.Report) []idle.Reason {
	var blockers []idle.Reason
	for _, word := range report.ServerBlockers {
		reason := idle.Reason(word)
		if !slices.Contains(idle.Reasons(), reason) {
			reason = idle.ReasonSiblingUnknown
		}
		blockers = append(blockers, reason)
	}
	return blockers
}

// served is which other instances have served since this process began.
type served struct {
	addresses map[string]netip.Addr
	// replaced says that one of them has been replaced or removed: no sidecar that was there can say whether it was used.
	replaced bool
}

// note records the instances of a healthy cluster. In any other, the addresses may be those of pods that are gone.
func (s *served) note(v kubernetes.View, pod string) {
	if !v.Healthy || v.Hibernating {
		return
	}
	for name, address := range s.addresses {
		s.replaced = s.replaced || name != pod && v.Addresses[name] != address
	}
	s.addresses = v.Addresses
}

// sampleRequest is another instance's request for a sample of this one.
type sampleRequest struct {
	asker netip.Addr
	done  chan bool
}

// SampleFor samples the instance for another one, and publishes the result. It reports whether the asker is an instance
// of the cluster and the sample was taken. It may be called from any goroutine.
func (l *Loop) SampleFor(ctx context.Context, asker netip.Addr) (ok bool) {
	request := sampleRequest{asker: asker, done: make(chan bool, 1)}
	select {
	case l.events <- request:
	case <-ctx.Done():
		return false
	}
	select {
	case ok := <-request.done:
		return ok
	case <-ctx.Done():
		return false
	}
}
