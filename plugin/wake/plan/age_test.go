package plan

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

const day = 24 * time.Hour

// backedUp says when the last Backup of a cluster that is a month old was completed, or, if it was not, has failed.
func backedUp(status metav1.ConditionStatus, at time.Time) func(*cnpgv1.Cluster) {
	return func(c *cnpgv1.Cluster) {
		c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{
			Type: string(cnpgv1.ConditionBackup), Status: status, LastTransitionTime: metav1.NewTime(at),
		})
	}
}

func retains(policy string) func(*cnpgv1.Cluster) {
	return func(c *cnpgv1.Cluster) {
		c.Spec.Backup = &cnpgv1.BackupConfiguration{RetentionPolicy: policy, BarmanObjectStore: &cnpgv1.BarmanObjectStoreConfiguration{}}
	}
}

func TestBackupsOf_tellsTheAgeAndTheKind(t *testing.T) {
	t.Parallel()
	type changes = []func(*cnpgv1.Cluster)
	weekly := annotate(contract.AnnotationBackupMaxAge, "7d")
	month, hour := now.Add(-31*day), now.Add(-time.Hour)
	archiver := func(enabled bool) func(*cnpgv1.Cluster) {
		return func(c *cnpgv1.Cluster) {
			c.Spec.Plugins = append(c.Spec.Plugins, cnpgv1.PluginConfiguration{
				Name: "barman", IsWALArchiver: ptr.To(true), Enabled: &enabled,
			})
		}
	}
	for _, row := range []struct {
		rule      string
		changes   changes
		schedules []string
		last      time.Time
		limit     time.Duration
		kind      string
	}{
		{"nothing without a limit", changes{archiver(true)}, []string{"a"}, time.Time{}, 0, ""},
		{"nor of a Cluster that does not list the plugin", changes{weekly, func(c *cnpgv1.Cluster) { c.Spec.Plugins = nil }}, nil, time.Time{}, 0, ""},
		{"from when the cluster was made", changes{weekly}, nil, month, 7 * day, ""},
		{"from the last Backup", changes{weekly, backedUp(metav1.ConditionTrue, hour)}, nil, hour, 7 * day, ""},
		{"unknown after one that failed", changes{weekly, backedUp(metav1.ConditionFalse, hour)}, nil, time.Time{}, 7 * day, ""},
		{"a retention in days", changes{retains("30d")}, nil, month, 30 * day, "barmanObjectStore"},
		{"in weeks", changes{retains("4w")}, nil, month, 28 * day, "barmanObjectStore"},
		{"in months", changes{retains("2m")}, nil, month, 62 * day, "barmanObjectStore"},
		{"one that is too long", changes{retains("4096d")}, nil, time.Time{}, 0, ""},
		{"the annotation goes before", changes{retains("30d"), weekly}, nil, month, 7 * day, "barmanObjectStore"},
		{"also if it says none", changes{retains("30d"), annotate(contract.AnnotationBackupMaxAge, contract.None)}, nil, time.Time{}, 0, ""},
		{"a plugin that archives goes before", changes{retains("30d"), archiver(true)}, nil, month, 30 * day, "plugin barman"},
		{"not one that is disabled", changes{retains("30d"), archiver(false)}, nil, month, 30 * day, "barmanObjectStore"},
		{"the first schedule goes before all", changes{weekly, archiver(true)}, []string{"b", "a"}, month, 7 * day, "plugin of a"},
		{"snapshots", changes{weekly, func(c *cnpgv1.Cluster) {
			c.Spec.Backup = &cnpgv1.BackupConfiguration{VolumeSnapshot: &cnpgv1.VolumeSnapshotConfiguration{}}
		}}, nil, month, 7 * day, "volumeSnapshot"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			cluster := made(row.changes...)
			cluster.Name, cluster.CreationTimestamp = "orders", metav1.NewTime(month)
			var schedules []cnpgv1.ScheduledBackup
			for _, name := range append(row.schedules, "0") {
				schedule := cnpgv1.ScheduledBackup{ObjectMeta: metav1.ObjectMeta{Name: name}}
				schedule.Spec.Method, schedule.Spec.PluginConfiguration = cnpgv1.BackupMethodPlugin, &cnpgv1.BackupPluginConfiguration{Name: "of " + name}
				if schedule.Spec.Cluster.Name = "orders"; name == "0" {
					schedule.Spec.Cluster.Name = "other"
				}
				schedules = append(schedules, schedule)
			}
			got, kind := BackupsOf(cluster, View(cluster, now).Policy, schedules), ""
			if got.kind != nil {
				if kind = string(got.kind.Method); got.kind.PluginConfiguration != nil {
					kind += " " + got.kind.PluginConfiguration.Name
				}
				if got.kind.Cluster.Name != "orders" {
					t.Errorf("a Backup of %s", got.kind.Cluster.Name)
				}
			}
			limit := BackupLimit(cluster, View(cluster, now).Policy)
			if !got.Last.Equal(row.last) || limit != row.limit || kind != row.kind {
				t.Errorf("last %s, limit %s, kind %q, want %s, %s and %q", got.Last, limit, kind, row.last, row.limit, row.kind)
			}
		})
	}
}

func TestDecide_wakesBeforeABackupIsTooOld(t *testing.T) {
	t.Parallel()
	type changes = []func(*cnpgv1.Cluster)
	weekly, asleep := annotate(contract.AnnotationBackupMaxAge, "7d"), asleepFor(day)
	without := func(c *cnpgv1.Cluster) { c.Spec.Plugins = c.Spec.Plugins[:1] }
	of := func(age time.Duration) func(*cnpgv1.Cluster) { return backedUp(metav1.ConditionTrue, now.Add(-age)) }
	failed := backedUp(metav1.ConditionFalse, now.Add(-2*day))
	listed := func(age time.Duration) *Completed {
		return &Completed{At: now.Add(-age), Kind: byBarman()}
	}
	wokenForOne := func(ago time.Duration) func(*cnpgv1.Cluster) {
		return lastWoken(t, contract.LastWake{At: now.Add(-ago), Cause: contract.CauseBackup, By: byMaxAge})
	}
	for _, row := range []struct {
		rule    string
		changes changes
		listed  *Completed
		want    string
		lists   bool
	}{
		{"not before", changes{switchedOn, asleep, weekly, of(6 * day)}, nil, "in 24h0m0s", false},
		{"at its time it asks which kind", changes{switchedOn, asleep, weekly, of(7 * day)}, nil, "", true},
		{"and wakes", changes{switchedOn, asleep, weekly, of(7 * day)}, listed(7 * day), "backup", false},
		{"from a doze too", changes{dozing, asleep, weekly, of(7 * day)}, listed(7 * day), "backup", false},
		{"also if only windows wake it", changes{switchedOn, asleep, weekly, of(7 * day), annotate(contract.AnnotationWake, "window")}, listed(7 * day), "backup", false},
		{"not if the Backups show a newer one", changes{switchedOn, asleep, weekly, of(7 * day)}, listed(day), "in 144h0m0s", false},
		{"after a failure it asks for the last success", changes{switchedOn, asleep, weekly, failed}, nil, "", true},
		{"which may be old", changes{switchedOn, asleep, weekly, failed}, listed(8 * day), "backup", false},
		{"or not", changes{switchedOn, asleep, weekly, failed}, listed(5 * day), "in 48h0m0s", false},
		{"without a kind it says so", changes{switchedOn, asleep, weekly, of(7 * day)}, &Completed{}, " BackupKindUnknown", false},
		{"not without the annotation", changes{switchedOn, asleep, of(99 * day)}, nil, "", false},
		{"nor if only people wake it", changes{switchedOn, asleep, weekly, of(7 * day), annotate(contract.AnnotationWake, "manual")}, nil, "", false},
		{"nor what a person put to sleep", changes{switchedOn, asleep, weekly, of(7 * day), func(c *cnpgv1.Cluster) { c.ManagedFields = by("kubectl") }}, nil, "", false},
		{"nor while the feature is off", changes{switchedOn, asleep, weekly, of(7 * day), annotate(contract.AnnotationEnabled, "false")}, nil, "", false},
		{"nor what is awake", changes{weekly, of(99 * day)}, nil, "", false},
		{"after a minute of sleep if it became too old while the cluster was awake", changes{switchedOn, asleepFor(time.Second), weekly, of(8 * day)}, listed(8 * day), "in 59s", false},
		{"or while it was awake for a schedule", changes{switchedOn, asleepFor(time.Second), weekly, of(8 * day), wokenFor(t, time.Minute, contract.CauseBackup, 3)}, listed(8 * day), "in 59s", false},
		{"an hour later if the last Backup failed", changes{switchedOn, asleepFor(time.Minute), weekly, failed}, listed(8 * day), "in 59m0s BackupPending", false},
		{"after a minute of sleep if the one failed that it was woken for", changes{switchedOn, asleepFor(time.Second), weekly, failed, wokenForOne(time.Minute)}, listed(8 * day), "in 59s BackupPending", false},
		{"or was not made", changes{switchedOn, asleepFor(time.Second), weekly, of(8 * day), wokenForOne(time.Minute)}, listed(8 * day), "in 59s BackupPending", false},
		{"without the plugin of the last one there is no kind", changes{switchedOn, asleep, weekly, of(7 * day), without}, listed(7 * day), " BackupKindUnknown", false},
		{"for the retention nothing is woken", changes{switchedOn, asleep, retains("7d"), of(8 * day)}, nil, "", false},
		{"but the age is asked for", changes{switchedOn, asleep, retains("7d"), failed}, nil, "", true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			cluster := made(append(changes{withBarman}, row.changes...)...)
			cluster.CreationTimestamp = metav1.NewTime(now.Add(-31 * day))
			state := State{Cluster: View(cluster, now), Annotations: cluster.Annotations}
			state.Backups = BackupsOf(cluster, state.Cluster.Policy, nil)
			state.Backups.Completed = row.listed
			var p Plan
			p.wake(state, now)
			got := due(state, now)
			for _, event := range p.Events {
				got += " " + event.Reason
				if strings.Contains(event.Message, "again") {
					t.Errorf("this may be the first time: %s", event.Message)
				}
			}
			if got != row.want || p.ListBackups != row.lists {
				t.Errorf("%q, asks for the Backups: %t, want %q and %t", got, p.ListBackups, row.want, row.lists)
			}
			if p.Wake != nil && p.Wake.By != byMaxAge {
				t.Errorf("woken for %s", p.Wake.By)
			}
		})
	}
}

// byBarman is how a plugin makes a Backup, and withBarman lists it.
func byBarman() *cnpgv1.BackupSpec {
	return &cnpgv1.BackupSpec{
		Cluster: cnpgv1.LocalObjectReference{Name: "orders"}, Method: cnpgv1.BackupMethodPlugin, Target: cnpgv1.BackupTargetPrimary,
		PluginConfiguration: &cnpgv1.BackupPluginConfiguration{Name: "barman"},
	}
}

func withBarman(c *cnpgv1.Cluster) {
	c.Spec.Plugins = append(c.Spec.Plugins, cnpgv1.PluginConfiguration{Name: "barman"})
}

func lastWoken(t *testing.T, wake contract.LastWake) func(*cnpgv1.Cluster) {
	t.Helper()
	value, err := wake.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return annotate(contract.AnnotationLastWake, value)
}

func TestBackups_offerWhatTheClusterHas(t *testing.T) {
	t.Parallel()
	section := func(b cnpgv1.BackupConfiguration) Backups { return Backups{section: &b} }
	plugin := func(name string, enabled *bool) Backups {
		return Backups{plugins: []cnpgv1.PluginConfiguration{{Name: name, Enabled: enabled}}}
	}
	store := section(cnpgv1.BackupConfiguration{BarmanObjectStore: &cnpgv1.BarmanObjectStoreConfiguration{}})
	snapshots := section(cnpgv1.BackupConfiguration{VolumeSnapshot: &cnpgv1.VolumeSnapshotConfiguration{}})
	for _, row := range []struct {
		rule    string
		backups Backups
		kind    *cnpgv1.BackupSpec
		offered bool
	}{
		{"a plugin that is listed", plugin("barman", nil), byBarman(), true},
		{"not another", plugin("other", nil), byBarman(), false},
		{"nor one that is disabled", plugin("barman", ptr.To(false)), byBarman(), false},
		{"nor one without a name", plugin("barman", nil), &cnpgv1.BackupSpec{Method: cnpgv1.BackupMethodPlugin}, false},
		{"an object store", store, &cnpgv1.BackupSpec{Method: cnpgv1.BackupMethodBarmanObjectStore}, true},
		{"which is the default", store, &cnpgv1.BackupSpec{}, true},
		{"not without its section", snapshots, &cnpgv1.BackupSpec{}, false},
		{"snapshots", snapshots, &cnpgv1.BackupSpec{Method: cnpgv1.BackupMethodVolumeSnapshot}, true},
		{"not without theirs", store, &cnpgv1.BackupSpec{Method: cnpgv1.BackupMethodVolumeSnapshot}, false},
		{"nothing without spec.backup", Backups{}, &cnpgv1.BackupSpec{}, false},
	} {
		if got := row.backups.offer(row.kind); got != row.offered {
			t.Errorf("%s: offered: %t", row.rule, got)
		}
	}
}

// aging is a cluster whose Backups succeed and fail, whose clients come and go, and whose plugin forgets.
type aging struct {
	*testing.T
	random          *rand.Rand
	at, since       time.Time
	made, completed time.Time // the cluster, and its last Backup
	failed          bool      // the last Backup
	maxAge          string
	last            contract.LastWake
	memory          Memory
	names           map[string]bool // of the Backups that were made
}

// decide plans as the controller does.
func (a *aging) decide(asleep bool) Plan {
	a.Helper()
	value, err := a.last.Encode()
	if err != nil {
		a.Fatal(err)
	}
	changes := []func(*cnpgv1.Cluster){withBarman, annotate(contract.AnnotationBackupMaxAge, a.maxAge), annotate(contract.AnnotationLastWake, value)}
	if asleep {
		changes = append(changes, switchedOn, annotate(contract.AnnotationAsleepSince, a.since.Format(time.RFC3339)))
	}
	if a.failed {
		changes = append(changes, backedUp(metav1.ConditionFalse, a.at))
	} else if a.completed.After(a.made) {
		changes = append(changes, backedUp(metav1.ConditionTrue, a.completed))
	}
	cluster := made(changes...)
	cluster.Name, cluster.CreationTimestamp = "orders", metav1.NewTime(a.made)
	if a.random.IntN(10) == 0 {
		a.memory = Memory{}
	}
	state := State{
		Name: types.NamespacedName{Namespace: "shop", Name: "orders"}, Cluster: View(cluster, a.at), Annotations: cluster.Annotations,
		Services: []Service{{Name: "orders-rw", UID: "rw", Direct: !asleep, Ready: !asleep}}, Memory: a.memory,
		Primary: "orders-1", Instances: []Pod{{Name: "orders-1", Ready: !asleep}},
	}
	state.Backups = BackupsOf(cluster, state.Cluster.Policy, nil)
	p := Decide(state, a.at)
	if p.ListBackups {
		state.Backups.Completed = &Completed{Kind: byBarman()}
		if a.completed.After(a.made) {
			state.Backups.Completed.At = a.completed
		}
		if p = Decide(state, a.at); p.ListBackups {
			a.Fatal("it asks for the Backups again")
		}
	}
	a.memory = p.Memory
	return p
}

// isAwake has the plugin make a Backup that succeeds or fails, if it was woken for one, and the cluster fall asleep later.
func (a *aging) isAwake(forBackup bool) {
	a.Helper()
	for range 12 { // after each time that it forgets, the plugin waits anew for the schedules
		p := a.decide(false)
		a.at = a.at.Add(resumeTakes)
		if p.MakeBackup == nil {
			continue
		}
		if a.names[p.MakeBackup.Name] {
			a.memory.MadeBackup = p.MakeBackup.Name // it exists
			continue
		}
		if !forBackup {
			a.Fatalf("Backup %s although it was not woken for one", p.MakeBackup.Name)
		}
		a.names[p.MakeBackup.Name], a.memory.MadeBackup, forBackup = true, p.MakeBackup.Name, false
		a.at = a.at.Add(20 * time.Second)
		if a.failed = a.random.IntN(2) == 0; !a.failed {
			a.completed = a.at
		}
	}
	if forBackup {
		a.Fatal("woken for a Backup that was not made")
	}
	a.at = a.at.Add(time.Minute + time.Duration(a.random.IntN(5)*a.random.IntN(60))*time.Minute)
	a.since = a.at
}

// No cluster is woken while its last Backup is young enough, none sleeps for more than an hour with one that is too old, and each
// wake for one makes one Backup.
func FuzzDecide_agesOfBackups(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed, uint16(seed*seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, hours uint16) {
		maxAge := time.Duration(1+hours%400) * time.Hour
		begin := now.Add(-time.Hour)
		a := &aging{
			T: t, random: rand.New(rand.NewPCG(seed, 1)), at: now, since: begin, made: begin, completed: begin, names: map[string]bool{},
			maxAge: fmt.Sprintf("%dh", maxAge/time.Hour), last: contract.LastWake{At: begin, By: "192.0.2.9"},
		}
		for range 300 {
			p, tooOld := a.decide(true), a.completed.Add(maxAge)
			if latest := later(tooOld, a.since.Add(time.Hour)); p.Wake == nil && (!p.Next.After(a.at) || p.Next.After(latest)) {
				t.Fatalf("at %s the next look is at %s; too old from %s, asleep since %s", a.at, p.Next, tooOld, a.since)
			}
			next := a.at.Add(time.Duration(a.random.IntN(int(2*maxAge/time.Second))) * time.Second)
			switch {
			case p.Wake != nil && a.at.Before(tooOld):
				t.Fatalf("woken at %s, too old from %s", a.at, tooOld)
			case p.Wake != nil:
				a.last = contract.LastWake{At: a.at, Cause: p.Wake.Cause, By: p.Wake.By, Unused: p.Wake.Unused}
				a.at = a.at.Add(10 * time.Second)
				a.isAwake(true)
			case p.Next.After(next): // a client comes before
				a.at, a.last = next, contract.LastWake{At: next, By: "192.0.2.9"}
				a.isAwake(false)
			default:
				a.at = p.Next
			}
		}
	})
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func TestDecide_makesTheBackupThatItWokeFor(t *testing.T) {
	t.Parallel()
	type changes = []func(*cnpgv1.Cluster)
	woken := func(ago time.Duration, cause contract.Cause, by string) func(*cnpgv1.Cluster) {
		return lastWoken(t, contract.LastWake{At: now.Add(-ago), Cause: cause, By: by})
	}
	old, hourly := backedUp(metav1.ConditionTrue, now.Add(-day)), annotate(contract.AnnotationBackupMaxAge, "1h")
	due := woken(time.Minute, contract.CauseBackup, byMaxAge)
	for _, row := range []struct {
		rule    string
		changes changes
		serves  time.Duration // for how long; negative: it does not
		newest  time.Duration // how long ago the newest Backup was made that has not failed
		made    string
		want    string
	}{
		{"once it serves", changes{hourly, old, due}, resumeTakes, day, "", "orders-260301115900"},
		{"beside a schedule's", changes{hourly, old, woken(time.Minute, contract.CauseBackup, byMaxAge+" and 1 more")}, resumeTakes, day, "", "orders-260301115900"},
		{"not before", changes{hourly, old, due}, -1, day, "", ""},
		{"nor before the schedules are resumed", changes{hourly, old, due}, resumeTakes - 1, day, "", ""},
		{"nor beside one that was made since the wake", changes{hourly, old, due}, resumeTakes, time.Second, "", ""},
		{"not again", changes{hourly, old, due}, resumeTakes, day, "orders-260301115900", ""},
		{"nor if one was completed", changes{hourly, backedUp(metav1.ConditionTrue, now), due}, resumeTakes, day, "", ""},
		{"nor for a schedule", changes{hourly, old, woken(time.Minute, contract.CauseBackup, "ScheduledBackup nightly")}, resumeTakes, day, "", ""},
		{"nor for a client", changes{hourly, old, woken(time.Minute, "", "192.0.2.9")}, resumeTakes, day, "", ""},
		{"nor long after", changes{hourly, old, woken(2*time.Hour, contract.CauseBackup, byMaxAge)}, resumeTakes, day, "", ""},
		{"nor without the annotation", changes{old, due}, resumeTakes, day, "", ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			cluster := made(append(changes{withBarman}, row.changes...)...)
			state := State{
				Name: types.NamespacedName{Namespace: "shop", Name: "orders"}, Cluster: View(cluster, now), Annotations: cluster.Annotations,
				Primary: "orders-1", Instances: []Pod{{Name: "orders-1", Ready: row.serves >= 0}},
				Memory: Memory{MadeBackup: row.made, serving: now.Add(-row.serves), completed: &Completed{At: now.Add(-day)}},
			}
			state.Backups = BackupsOf(cluster, state.Cluster.Policy, nil)
			p := Decide(state, now)
			if p.MakeBackup != nil {
				t.Error("without a list of what was made since the wake")
			}
			if p.ListBackups {
				state.Backups.Completed = &Completed{At: now.Add(-day), Kind: byBarman(), Made: now.Add(-row.newest)}
			}
			got := ""
			if backup := Decide(state, now).MakeBackup; backup != nil {
				got = backup.Name
				if diff := cmp.Diff(*byBarman(), backup.Spec); diff != "" || backup.Namespace != "shop" || len(backup.OwnerReferences) != 0 {
					t.Errorf("%+v (-want +got):\n%s", backup.ObjectMeta, diff)
				}
			}
			if got != row.want {
				t.Errorf("made %q, want %q", got, row.want)
			}
		})
	}
}
