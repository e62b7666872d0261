package sleep

import (
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// The clock of the plugin in the models, and the deadlines of their announcements.
var (
	beforeDeadline = time.Date(2026, 3, 1, 18, 0, 0, 0, time.UTC)
	afterDeadline  = beforeDeadline.Add(contract.AnnouncementLifetime)
	newestValue    = contract.Announcement{PodUID: newest, Deadline: afterDeadline.Add(-time.Second)}
	olderValue     = contract.Announcement{PodUID: older, Deadline: afterDeadline.Add(-time.Second)}
	texts          = map[string]string{newest: newestValue.String(), older: olderValue.String()}
	textsOfDozes   = func() map[string]string {
		n, o := newestValue, olderValue
		n.Doze, o.Doze = true, true
		return map[string]string{texts[newest]: n.String(), texts[older]: o.String()}
	}()
)

// planned is what the plugin reads of a Cluster that lists it and may sleep, in place of plan.View.
func planned(v View) plan.Cluster {
	c := plan.Cluster{
		Listed: true, Policy: idle.Policy{Enabled: true},
		HibernationOn: v.HibernationOn, OwnsHibernation: v.OwnsHibernation,
		Fenced: v.Fenced, Dozing: v.Fenced && !v.HibernationOn,
		Announced: texts[v.Announced], Acknowledged: texts[v.Acknowledged], HoldingValue: texts[v.Holding],
		Holding: v.held(),
	}
	c.Stopped = c.Dozing && v.Stopped
	return c
}

// ofDoze is the text of an announcement of a doze instead of a hibernation.
func ofDoze(text string) string { return textsOfDozes[text] }
