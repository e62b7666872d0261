package tests

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// Name prefixes of plugins that the operator calls before and after ours.
const (
	askedBefore = "a-"
	askedAfter  = "z-"
)

// Next to a plugin that archives WAL and takes backups, called before or after ours, both work: its Backups keep the cluster
// awake, its schedules are suspended and resumed, its archiving continues after a sleep, and a wake does not wait for the
// period of its sidecar's startup probe. spec.plugins has the opposite order, since the operator goes by names.
func TestBesideAnotherPlugin(t *testing.T) {
	whole(t)
	t.Parallel()
	image := provided(t, "NEIGHBOUR_IMAGE")
	s := begin(t)
	ours := cnpgv1.PluginConfiguration{Name: scenario.PluginName}
	for order, prefix := range map[string]string{"asked before": askedBefore, "asked after": askedAfter} {
		neighbour := s.otherPlugin(scenario.Neighbour{Name: prefix + s.namespace, Image: image})
		neighbour.IsWALArchiver = ptr.To(true)
		plugins := []cnpgv1.PluginConfiguration{ours, neighbour}
		if prefix == askedAfter {
			slices.Reverse(plugins)
		}
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			s := begin(t)
			c := kube.NewCluster(s.namespace, "beside", 1, never)
			c.Spec.Plugins = plugins
			s.running(c)
			s.besideAnother(c, neighbour.Name)
		})
	}
}

// If another plugin is called after ours and rebuilds its sidecar at CREATE, its startup probe keeps its period, and the wake's
// Event names it as what the wake waited for.
func TestWoken_namesTheSidecarThatWasWaitedFor(t *testing.T) {
	whole(t)
	t.Parallel()
	image := provided(t, "NEIGHBOUR_IMAGE")
	s := begin(t)
	c := kube.NewCluster(s.namespace, "waited", 1, never)
	c.Spec.Plugins = append(c.Spec.Plugins, s.otherPlugin(scenario.Neighbour{Name: askedAfter + s.namespace, Image: image, Replaces: true}))
	s.running(c)
	s.sleeps(c)
	_, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 1")
	s.must(err)
	message, err := kube.AwaitEvent(s.ctx, c, "Woken", toSettle)
	s.must(err)
	if want := fmt.Sprintf("init container %q", scenario.NeighbourContainer); !strings.Contains(message, want) {
		s.Errorf("the Event does not name the %s: %s", want, message)
	}
}

// With SHORTEN_STARTUP_PROBES=false the startup probes of other plugins' sidecars stay as planned, whichever plugin is called first.
func TestShortenStartupProbes_falseLeavesOthersAsPlanned(t *testing.T) {
	whole(t)
	s := disturbing(t)
	image := provided(t, "NEIGHBOUR_IMAGE")
	d := s.turn()
	const setting = "SHORTEN_STARTUP_PROBES"
	before := environment(s.plugin(), setting)
	t.Cleanup(func() { s.ctx = cleanup(t); d.set(setting, before) })
	d.set(setting, "false")
	s.othersGone()
	var clusters []*cnpgv1.Cluster
	for _, prefix := range []string{askedBefore, askedAfter} {
		c := s.cluster(prefix+"beside", 1)
		c.Spec.Plugins = append(c.Spec.Plugins, s.otherPlugin(scenario.Neighbour{Name: prefix + s.namespace, Image: image}))
		clusters = append(clusters, c)
	}
	s.together(clusters...)
	for _, c := range clusters {
		plan, made := s.startupProbes(s.bothInjected(c))
		if cmp.Or(plan.PeriodSeconds, usual) != usual || made.PeriodSeconds != usual || made.FailureThreshold != plan.FailureThreshold {
			s.Errorf("%s: the plan has %d probes every %d s, the pod has %d every %d s", c.Name,
				plan.FailureThreshold, cmp.Or(plan.PeriodSeconds, usual), made.FailureThreshold, made.PeriodSeconds)
		}
	}
}

// set rolls out the plugin with a setting, or without it if the value is empty.
func (s *disturber) set(setting, value string) {
	s.Helper()
	deployment := s.plugin()
	changed := deployment.DeepCopy()
	container := &changed.Spec.Template.Spec.Containers[0]
	container.Env = withVariable(container.Env, setting, value)
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(deployment)))
	s.rolledOut()
}

func (s *story) besideAnother(c *cnpgv1.Cluster, neighbour string) {
	s.Helper()
	pod := s.bothInjected(c)
	// The threshold passes before the Backup begins, so that a slow machine has most of the Backup's duration to report it.
	s.annotate(c, scenario.KeepAwakeUntil, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.archivesMore(c, 0)
	schedule := scenario.NewScheduledBackup(c, "yearly", "0 0 0 1 1 *")
	schedule.Spec.Method, schedule.Spec.PluginConfiguration = cnpgv1.BackupMethodPlugin, takes(neighbour, time.Second)
	s.must(kube.Create(s.ctx, schedule))

	backup := s.backup(c, neighbour, 3*threshold)
	s.must(kube.Annotate(s.ctx, c, scenario.KeepAwakeUntil, nil))
	_, err := kube.AwaitEventSaying(s.ctx, c, "SleepBlocked", "(backup_running)", toSettle)
	s.must(err)
	if got := s.instances(c)[0].UID; got != pod.UID {
		s.Errorf("the instance was replaced: %s by %s", pod.UID, got)
	}
	s.fallsAsleep(c, "asleep after the Backup")
	if s.completed(c, backup); backup.Status.BackupID == "" {
		s.Error("the Backup has no identity")
	}
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(schedule), schedule))
	if _, marked := schedule.Annotations[scenario.Suspended]; !suspended(schedule) || !marked {
		s.Errorf("asleep, the schedule is suspended %t and marked %t", suspended(schedule), marked)
	}

	s.annotate(c, scenario.InactivityMinutes, never)
	_, err = kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 1")
	s.must(err)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.probedEverySecond(s.bothInjected(c))
	archived, _ := s.archived(c)
	s.archivesMore(c, archived)
	if _, failures := s.archived(c); failures != 0 {
		s.Errorf("PostgreSQL counts %d failures of the archive", failures)
	}
	s.resumed(schedule)
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	if !meta.IsStatusConditionTrue(c.Status.Conditions, string(cnpgv1.ConditionContinuousArchiving)) {
		s.Errorf("the archive is not continuous: %v", c.Status.Conditions)
	}
}

// probedEverySecond checks that the startup probe of the other plugin's sidecar has a period of one second, no delay, and the planned
// total time. `make bench` measures what that saves.
func (s *story) probedEverySecond(pod corev1.Pod) {
	s.Helper()
	plan, made := s.startupProbes(pod)
	if period := cmp.Or(plan.PeriodSeconds, usual); made.PeriodSeconds != 1 || made.InitialDelaySeconds != 0 || made.FailureThreshold != period*plan.FailureThreshold {
		s.Errorf("the plan has %d probes every %d s, the pod has %d every %d s", plan.FailureThreshold, period, made.FailureThreshold, made.PeriodSeconds)
	}
}

// usual is Kubernetes' default period of a probe, in seconds.
const usual = 10

// startupProbes returns the startup probe of the other plugin's sidecar as it was planned and as the pod has it.
func (s *story) startupProbes(pod corev1.Pod) (planned, made corev1.Probe) {
	s.Helper()
	var plan corev1.PodSpec
	s.must(json.Unmarshal([]byte(pod.Annotations["cnpg.io/podSpec"]), &plan))
	probe := func(spec corev1.PodSpec) corev1.Probe {
		at := slices.IndexFunc(spec.InitContainers, func(c corev1.Container) bool { return c.Name == scenario.NeighbourContainer })
		if at < 0 || spec.InitContainers[at].StartupProbe == nil {
			s.Fatalf("there is no startup probe of %s", scenario.NeighbourContainer)
		}
		return *spec.InitContainers[at].StartupProbe
	}
	return probe(plan), probe(pod.Spec)
}

// neighbour installs the other plugin until the test ends, under the name of the test's namespace.
func (s *story) neighbour(image string) cnpgv1.PluginConfiguration {
	s.Helper()
	return s.otherPlugin(scenario.Neighbour{Name: s.namespace, Image: image})
}

// otherPlugin installs another plugin until the test ends.
func (s *story) otherPlugin(n scenario.Neighbour) cnpgv1.PluginConfiguration {
	s.Helper()
	s.Cleanup(func() {
		ctx := cleanup(s.T)
		s.must(kube.DeleteAllOf(ctx, &cnpgv1.Cluster{}, client.InNamespace(s.namespace)))
		s.must(kube.RemoveNeighbour(ctx, n.Name))
	})
	s.must(kube.InstallNeighbour(s.ctx, n))
	return cnpgv1.PluginConfiguration{Name: n.Name}
}

// backup makes the other plugin take a backup of that duration, and waits until it is running, or over if it is short.
func (s *story) backup(c *cnpgv1.Cluster, neighbour string, long time.Duration) *cnpgv1.Backup {
	s.Helper()
	backup := &cnpgv1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "by-hand"},
		Spec: cnpgv1.BackupSpec{
			Cluster: cnpgv1.LocalObjectReference{Name: c.Name}, Method: cnpgv1.BackupMethodPlugin,
			PluginConfiguration: takes(neighbour, long),
		},
	}
	s.must(kube.Create(s.ctx, backup))
	_, err := scenario.Await(s.ctx, kube, backup, "being taken", toHealthy, func(b *cnpgv1.Backup) bool {
		return b.Status.Phase == cnpgv1.BackupPhaseStarted || b.Status.Phase == cnpgv1.BackupPhaseCompleted
	})
	s.must(err)
	return backup
}

// takes configures a backup of that duration by the other plugin.
func takes(neighbour string, long time.Duration) *cnpgv1.BackupPluginConfiguration {
	return &cnpgv1.BackupPluginConfiguration{Name: neighbour, Parameters: map[string]string{"takes": long.String()}}
}

// bothInjected checks that the only instance has both sidecars, and that both run.
func (s *story) bothInjected(c *cnpgv1.Cluster) corev1.Pod {
	s.Helper()
	pod := s.instances(c)[0]
	running := map[string]bool{}
	for _, container := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		running[container.Name] = container.State.Running != nil
	}
	if !running[scenario.SidecarContainer] || !running[scenario.NeighbourContainer] {
		s.Fatalf("not both sidecars run: %v", running)
	}
	return pod
}

// segment matches the file name of a WAL segment.
var segment = regexp.MustCompile(`(?m)^[0-9A-F]{24}$`)

// archived counts the segments in the other plugin's archive, and PostgreSQL's archiving failures.
func (s *story) archived(c *cnpgv1.Cluster) (segments, failures int) {
	s.Helper()
	pod := c.Status.CurrentPrimary
	list, err := kube.Exec(s.ctx, c.Namespace, pod, "postgres", "bash", "-c", `ls "$(dirname "$PGDATA")/neighbour"`)
	s.must(err)
	count, err := kube.Exec(s.ctx, c.Namespace, pod, "postgres", "psql", "-XAtqc", "select failed_count from pg_stat_archiver")
	s.must(err)
	failures, err = strconv.Atoi(strings.TrimSpace(count))
	s.must(err)
	return len(segment.FindAllString(list, -1)), failures
}

// archivesMore switches the WAL segment and checks that the archive grows.
func (s *story) archivesMore(c *cnpgv1.Cluster, had int) {
	s.Helper()
	const write = "create table if not exists written (); drop table written; select pg_switch_wal()"
	_, err := kube.Exec(s.ctx, c.Namespace, c.Status.CurrentPrimary, "postgres", "psql", "-XAtqc", write)
	s.must(err)
	for deadline := time.Now().Add(toSettle); ; pause(s, pollEvery) {
		has, _ := s.archived(c)
		if has > had {
			s.Logf("%d segments in the store, more than %d", has, had)
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("no more than %d segments in the store", has)
		}
	}
}
