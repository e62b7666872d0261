package plan

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// Backups is what a plan needs to know of a cluster's Backups; the zero value if nothing limits their age.
type Backups struct {
	// Last is when the last one was completed, or, if none was, when the cluster was created; zero: the Cluster does not
	// say.
	Last, made time.Time
	// limited says that the annotation or the Cluster's retention policy limits its age.
	limited bool
	// kind is how one is made, by the ScheduledBackups or the Cluster; nil: they do not say.
	kind *cnpgv1.BackupSpec
	// plugins and section, which is spec.backup, are the Cluster's.
	plugins []cnpgv1.PluginConfiguration
	section *cnpgv1.BackupConfiguration
	// Completed is the newest completed one, if the plan asked for it.
	Completed *Completed
}

// Completed is a completed Backup; the zero value: there is none.
type Completed struct {
	At   time.Time
	Kind *cnpgv1.BackupSpec
	// Made is when the newest Backup was made that has not failed.
	Made time.Time
}

// BackupsOf reads what a Cluster and the ScheduledBackups of its namespace say. Every method of Backups writes the
// condition and nothing else there (1.30): after a failure, it does not say when the last success was.
func BackupsOf(cluster *cnpgv1.Cluster, policy idle.Policy, schedules []cnpgv1.ScheduledBackup) Backups {
	if BackupLimit(cluster, policy) == 0 {
		return Backups{}
	}
	backups := Backups{made: cluster.CreationTimestamp.Time, limited: true, kind: kindOf(cluster, schedules)}
	backups.plugins, backups.section = cluster.Spec.Plugins, cluster.Spec.Backup
	condition := meta.FindStatusCondition(cluster.Status.Conditions, string(cnpgv1.ConditionBackup))
	if condition == nil {
		backups.Last = backups.made
	} else if condition.Status == metav1.ConditionTrue {
		backups.Last = condition.LastTransitionTime.Time
	}
	return backups
}

// BackupLimit returns how old the last Backup of a sleeping cluster that lists the plugin may become: by the
// annotation, or else by spec.backup.retentionPolicy, whose months have 31 days here. It is zero if there is no limit,
// as with the annotation's value none.
func BackupLimit(cluster *cnpgv1.Cluster, policy idle.Policy) time.Duration {
	switch {
	case !Lists(cluster) || policy.BackupAnyAge:
		return 0
	case policy.BackupMaxAge != 0 || cluster.Spec.Backup == nil || cluster.Spec.Backup.RetentionPolicy == "":
		return policy.BackupMaxAge
	}
	retention, last := cluster.Spec.Backup.RetentionPolicy, len(cluster.Spec.Backup.RetentionPolicy)-1
	number, err := strconv.ParseUint(retention[:last], 10, 12) // more, about eleven years, would be no limit
	if err != nil {
		return 0
	}
	return time.Duration(number) * map[byte]time.Duration{'d': 1, 'w': 7, 'm': 31}[retention[last]] * 24 * time.Hour
}

// kindOf is how a cluster of which no Backup was completed makes one: as the first of its ScheduledBackups by name, or
// else by the plugin that archives its WAL, or by spec.backup.
func kindOf(cluster *cnpgv1.Cluster, schedules []cnpgv1.ScheduledBackup) *cnpgv1.BackupSpec {
	var first *cnpgv1.ScheduledBackup
	for i := range schedules {
		of := &schedules[i]
		if of.Spec.Cluster.Name == cluster.Name && (first == nil || of.Name < first.Name) {
			first = of
		}
	}
	kind := &cnpgv1.BackupSpec{Cluster: cnpgv1.LocalObjectReference{Name: cluster.Name}}
	archives := func(p cnpgv1.PluginConfiguration) bool {
		return p.IsEnabled() && p.IsWALArchiver != nil && *p.IsWALArchiver
	}
	backup, archiver := cluster.Spec.Backup, slices.IndexFunc(cluster.Spec.Plugins, archives)
	switch {
	case first != nil:
		return &first.CreateBackup("").Spec
	case archiver >= 0:
		kind.Method = cnpgv1.BackupMethodPlugin
		kind.PluginConfiguration = &cnpgv1.BackupPluginConfiguration{Name: cluster.Spec.Plugins[archiver].Name}
	case backup != nil && backup.BarmanObjectStore != nil:
		kind.Method = cnpgv1.BackupMethodBarmanObjectStore
	case backup != nil && backup.VolumeSnapshot != nil:
		kind.Method = cnpgv1.BackupMethodVolumeSnapshot
	default:
		return nil
	}
	return kind
}

// byMaxAge describes in [Wake.By] a wake for a Backup that the plugin makes; others may follow it.
const byMaxAge = "backup-max-age"

// last returns when the last Backup was completed or, without one, when the cluster was created. unknown says that only
// a list of the Backups can tell; listed is the newest completed one of that list.
func (b Backups) last(listed *Completed) (last time.Time, unknown bool) {
	switch {
	case listed != nil && listed.At.After(b.Last):
		return listed.At, false
	case listed != nil && b.Last.IsZero():
		return b.made, false
	default:
		return b.Last, b.limited && b.Last.IsZero()
	}
}

// tooOld returns since when the last Backup has been too old, if one can be made; else zero.
func (p *Plan) tooOld(state State, now time.Time) time.Time {
	policy, last := state.Cluster.Policy, p.Memory.lastBackup
	if !policy.WakesByAge() || last.IsZero() {
		return time.Time{}
	}
	due := last.Add(policy.BackupMaxAge)
	if now.Before(due) {
		p.at(due)
		return time.Time{}
	}
	if p.kind(state.Backups) != nil {
		return due
	}
	if !p.ListBackups {
		p.Events = append(p.Events, Event{
			Warning: true, Reason: "BackupKindUnknown", Occasion: state.Annotations[contract.AnnotationAsleepSince],
			Message: "The last Backup is older than " + contract.AnnotationBackupMaxAge + " allows, and the cluster is not " +
				"woken for one, because nothing says how to create it: no Backup was completed, there is no ScheduledBackup, and " +
				"the Cluster has neither a plugin that archives WAL nor spec.backup. Create a Backup or a ScheduledBackup",
		})
	}
	return time.Time{}
}

// kind returns how the next Backup is made. Nil: nothing says it, or the plan asks for the Backups first.
func (p *Plan) kind(backups Backups) *cnpgv1.BackupSpec {
	switch completed := p.Memory.completed; {
	case completed == nil:
		p.ListBackups = true
		return nil
	case completed.Kind != nil && backups.offer(completed.Kind):
		return completed.Kind
	default:
		return backups.kind
	}
}

// offer reports whether the Cluster still has what makes a Backup of that kind.
func (b Backups) offer(kind *cnpgv1.BackupSpec) bool {
	switch section := cmp.Or(b.section, &cnpgv1.BackupConfiguration{}); kind.Method {
	case cnpgv1.BackupMethodPlugin:
		return slices.ContainsFunc(b.plugins, func(p cnpgv1.PluginConfiguration) bool {
			return p.IsEnabled() && kind.PluginConfiguration != nil && p.Name == kind.PluginConfiguration.Name
		})
	case cnpgv1.BackupMethodVolumeSnapshot:
		return section.VolumeSnapshot != nil
	default:
		return section.BarmanObjectStore != nil
	}
}

// resumeTakes is how long the sidecar has to resume the ScheduledBackups of a woken cluster that serves, and the
// operator to make the Backup that they have missed. The cluster stays awake for a minute.
const resumeTakes = 20 * time.Second

// makeBackup plans the Backup for which the cluster was woken, once it serves and its ScheduledBackups have been
// resumed, unless a Backup made since the wake runs or has completed. Every replica uses the same name. The Backup has
// no owner, so that it outlives the Cluster.
func (p *Plan) makeBackup(state State, now time.Time) {
	cluster := state.Cluster
	wake, err := contract.ParseLastWake(state.Annotations[contract.AnnotationLastWake])
	name := state.Name.Name + "-" + wake.At.Format("060102150405")
	woken := err == nil && wake.Cause == contract.CauseBackup && strings.HasPrefix(wake.By, byMaxAge) &&
		now.Sub(wake.At) < StandInFor && cluster.Policy.WakesByAge() && cluster.ObstacleTo(contract.CauseBackup) == ""
	p.Memory.completed = state.Backups.Completed // a list of the sleep lacks what was made since
	if !woken || p.Memory.MadeBackup == name || state.Backups.Last.After(wake.At) || cluster.MayStillStop || !state.Serves() {
		return
	}
	if p.Memory.serving.IsZero() {
		p.Memory.serving = now
	}
	if until := p.Memory.serving.Add(resumeTakes); now.Before(until) {
		p.at(until)
		return
	}
	if kind := p.kind(state.Backups); kind != nil && !p.Memory.completed.Made.After(wake.At) {
		p.MakeBackup = &cnpgv1.Backup{Spec: *kind.DeepCopy()}
		p.MakeBackup.Namespace, p.MakeBackup.Name = state.Name.Namespace, name
		p.MakeBackup.Labels = map[string]string{contract.LabelManagedBy: contract.ManagedBy, "cnpg.io/cluster": state.Name.Name}
	}
}
