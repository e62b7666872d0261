package plan

import (
	"slices"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/robfig/cron"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Slot is a run of a ScheduledBackup.
type Slot struct {
	// Schedule is the name of the ScheduledBackup.
	Schedule string
	// At is when the operator makes the Backup. It makes one for all the runs that it has missed.
	At time.Time
	// Wakes is when the cluster is woken for it.
	Wakes time.Time
	// Made is when the operator has last made one; zero: never.
	Made time.Time
}

// SlotsOf returns the next run of each of a cluster's ScheduledBackups that its wake resumes, or that is not suspended.
func SlotsOf(cluster *cnpgv1.Cluster, schedules []cnpgv1.ScheduledBackup) []Slot {
	var slots []Slot
	for i := range schedules {
		schedule := &schedules[i]
		_, marked := schedule.Annotations[contract.AnnotationSuspended]
		suspended := schedule.IsSuspended()
		ours := marked && contract.SetByUs(schedule.ManagedFields, "spec", "suspend")
		at, next := runs(schedule)
		if schedule.Namespace != cluster.Namespace || schedule.Spec.Cluster.Name != cluster.Name || suspended && !ours || at.IsZero() {
			continue
		}
		slot := Slot{Schedule: schedule.Name, At: at, Wakes: at}
		if made := schedule.Status.LastCheckTime; made != nil {
			slot.Made = made.Time
		}
		if !suspended { // one that was made during the sleep: its Backup fails unless the cluster is awake by then
			slot.Wakes = at.Add(-unknownLead)
		} else if over := min(spread, next.Sub(at)/10); over > 0 {
			slot.Wakes = at.Add(share(cluster.UID, over))
		}
		slots = append(slots, slot)
	}
	return slots
}

// runs returns when the operator makes the next Backup of a schedule, and the one after that, by its own rules (1.30:
// reconcileScheduledBackup in internal/controller/scheduledbackup_controller.go) and in UTC, the time zone of its pods.
// It counts from its first look at a schedule, and then from the last Backup that it has made. Zero: never.
func runs(schedule *cnpgv1.ScheduledBackup) (at, next time.Time) {
	times, err := cron.Parse(schedule.GetSchedule())
	if err != nil {
		return time.Time{}, time.Time{}
	}
	at = times.Next(schedule.CreationTimestamp.UTC())
	if looked := schedule.Status.LastCheckTime; looked != nil {
		at = times.Next(looked.UTC())
	} else if schedule.IsImmediate() {
		at = schedule.CreationTimestamp.UTC()
	}
	return at, times.Next(at)
}

// wakeForBackups wakes the cluster for the runs that are due, and if its last Backup is too old.
func (p *Plan) wakeForBackups(state State, last contract.LastWake, since, now time.Time) {
	var due Pending
	slots := state.Slots
	if !state.Cluster.Policy.OnBackup {
		slots = nil
	}
	for _, slot := range slots {
		if now.Before(slot.Wakes) {
			p.at(slot.Wakes)
			continue
		}
		due.Names = append(due.Names, "ScheduledBackup "+slot.Schedule)
		if slot.At.After(due.Changed) {
			due.Changed = slot.At
		}
		due.Untried = due.Untried || slot.Made.After(last.At)
	}
	slices.Sort(due.Names)
	if passed := p.tooOld(state, now); !passed.IsZero() {
		due.Names = slices.Insert(due.Names, 0, byMaxAge)
		due.Untried = due.Untried || !state.Backups.Last.IsZero() && !strings.HasPrefix(last.By, byMaxAge)
		if passed.After(due.Changed) {
			due.Changed = passed
		}
	}
	p.wakeForPending(contract.CauseBackup, due, last, since, now)
}
