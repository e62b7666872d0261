package control

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/siblings"
)

// siblingCount is the number of other instances.
func (l *Loop) siblingCount() int {
	count := 0
	for _, name := range l.status.View.Instances {
		if name != l.parts.Pod {
			count++
		}
	}
	return count
}

// ask asks the other instances. One whose address is not known has an answer too: none.
func (l *Loop) ask(ctx context.Context) []siblings.Answer {
	others := maps.Clone(l.status.View.Addresses)
	delete(others, l.parts.Pod)
	reachable := map[string]netip.Addr{}
	var answers []siblings.Answer
	for _, name := range l.status.View.Instances {
		if name == l.parts.Pod {
			continue
		}
		if address, known := others[name]; known {
			reachable[name] = address
		} else {
			answers = append(answers, siblings.Answer{Pod: name, Err: errNoAddress})
		}
	}
	return append(answers, l.parts.Siblings.Ask(ctx, reachable)...)
}

// elsewhere is what the answers come to: silence is unknown, and idle is who says since when.
func elsewhere(answers []siblings.Answer, now time.Time, logger *slog.Logger) idle.Elsewhere {
	all := idle.Elsewhere{Asked: true}
	for _, answer := range answers {
		report := answer.Report
		switch {
		case answer.Err != nil:
			logger.Info("another instance did not answer", "instance", answer.Pod, "error", answer.Err.Error())
			all.Unknown = true
		case !report.Known:
			all.Unknown = true
		case report.Active || report.IdleForSeconds == nil || *report.IdleForSeconds < 0:
			logger.Info("another instance is in use", "instance", answer.Pod, "active", report.Active,
				"lastActivity", report.LastActivity, "lastUnseenClient", report.LastUnseenClient, "blockers", report.Blockers)
			all.Active = true
		default:
			since := now.Add(-time.Duration(*report.IdleForSeconds * float64(time.Second)))
			all.IdleSince = later(all.IdleSince, since)
		}
	}
	return all
}
