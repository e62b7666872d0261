package tests

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/install"
	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// defaultRequest is a sidecar's default CPU request in a Burstable pod.
const defaultRequest = "10m"

// version is a release: the images of plugin and sidecar, the sidecar's CPU request, and when a new sidecar reaches running
// instances (empty if the plugin's setting is absent).
type version struct {
	plugin, sidecar, request, update string
	// program is the version that the programs report; empty if unknown.
	program string
}

// New images of plugin and sidecar, and another setting, restart no running PostgreSQL, in both directions. The next pod of a
// cluster has the new sidecar. A cluster that asks for it is rolled at once, as are all with the plugin's setting, except one
// that opts out.
func TestUpgradeRestartsNothing(t *testing.T) {
	whole(t)
	s := disturbing(t)
	tag := provided(t, "NEXT_TAG")
	registry, _ := s.pluginImage()
	images := registry + "/" + install.PluginImage
	next := version{plugin: images + ":" + tag, sidecar: images + "-sidecar:" + tag, request: "60m", program: tag}
	sleeper, restarted, eager := s.cluster("sleeper", 1), s.cluster("restarted", 1), s.cluster("eager", 1)
	patient := []*cnpgv1.Cluster{s.cluster("patient", 1), s.cluster("pair", 2)}
	all := append([]*cnpgv1.Cluster{sleeper, restarted, eager}, patient...)
	s.together(all...)
	d := s.turn(all...)
	previous := s.installed()
	if next.program == previous.program {
		t.Fatalf("the images of both versions say that they are %s", next.program)
	}
	t.Cleanup(func() { s.ctx = cleanup(t); d.install(previous) })

	before := s.lives(all...)
	d.install(next)
	s.untouched(before, next, all...)
	s.carry(previous, all...)

	s.sleeps(sleeper)
	s.wake(sleeper)
	pod := s.instances(restarted)[0]
	s.must(kube.Delete(s.ctx, &pod))
	s.updated(restarted, next)
	rolls := s.watchInstances(eager)
	s.annotate(eager, scenario.SidecarUpdate, "immediate")
	s.updated(eager, next)
	if next.program != "" {
		s.awaitMetric(s.instances(eager)[0].Name, fmt.Sprintf("cnpg_scale_to_zero_build_info{cluster=%q,version=%q} 1", eager.Name, next.program))
	}
	s.untouched(before, next, patient...)
	s.carry(next, sleeper, restarted)
	s.carriersCounted(eager, next.sidecar, 1)
	s.carriersCounted(patient[1], previous.sidecar, 2)

	rest := append([]*cnpgv1.Cluster{sleeper, restarted}, patient...)
	before = s.lives(rest...)
	d.install(previous)
	s.othersGone() // while replicas of both versions answer the operator, each may have replaced what the other has made
	s.looked(eager, previous)
	maps.Copy(before, s.lives(eager))
	s.untouched(before, previous, append(rest, eager)...)
	s.carry(next, sleeper, restarted)
	replaced := rolls()
	t.Logf("the cluster that asked for new sidecars had %d pods", replaced)
	if replaced < 3 {
		t.Errorf("the cluster that asked for new sidecars had %d pods, want one at first, one with the new one, and one with the old one again", replaced)
	}
	s.annotate(sleeper, scenario.SidecarUpdate, "on-restart") // the operator has seen it when the cluster is woken
	s.sleeps(sleeper)
	s.wake(sleeper)
	s.carry(previous, sleeper)
	s.carriersCounted(eager, next.sidecar, 0)

	for _, c := range []*cnpgv1.Cluster{restarted, eager, patient[1]} { // one shows that the setting reaches it
		s.must(kube.Delete(s.ctx, c))
	}
	atOnce := next
	atOnce.update = "immediate"
	d.install(atOnce)
	s.looked(patient[0], atOnce)
	s.carry(previous, sleeper)
}

func (s *story) cluster(name string, instances int) *cnpgv1.Cluster {
	return kube.NewCluster(s.namespace, name, instances, never)
}

// installed returns the running version.
func (s *story) installed() version {
	s.Helper()
	deployment := s.plugin()
	return version{
		plugin: deployment.Spec.Template.Spec.Containers[0].Image, sidecar: environment(deployment, "SIDECAR_IMAGE"),
		request: environment(deployment, "SIDECAR_CPU_REQUEST"), update: environment(deployment, "SIDECAR_UPDATE"),
		program: s.program(),
	}
}

// install rolls out a version.
func (s *disturber) install(v version) {
	s.Helper()
	deployment := s.plugin()
	changed := deployment.DeepCopy()
	container := &changed.Spec.Template.Spec.Containers[0]
	container.Image = v.plugin
	for name, value := range map[string]string{"SIDECAR_IMAGE": v.sidecar, "SIDECAR_CPU_REQUEST": v.request, "SIDECAR_UPDATE": v.update} {
		container.Env = withVariable(container.Env, name, value)
	}
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(deployment)))
	s.rolledOut()
	if program := s.program(); v.program != "" && program != v.program {
		s.Errorf("the plugin says that it is %s, want %s", program, v.program)
	}
}

// withVariable sets a variable in its place, adds it, or removes it if the value is empty.
func withVariable(env []corev1.EnvVar, name, value string) []corev1.EnvVar {
	i := slices.IndexFunc(env, func(v corev1.EnvVar) bool { return v.Name == name })
	switch {
	case i >= 0 && value == "":
		return slices.Delete(env, i, i+1)
	case i >= 0:
		env[i].Value = value
	case value != "":
		env = append(env, corev1.EnvVar{Name: name, Value: value})
	}
	return env
}

// program returns the version that every replica of the plugin reports.
func (s *story) program() string {
	s.Helper()
	said := ""
	for _, replica := range s.replicas() {
		out, err := kube.Exec(s.ctx, replica.Namespace, replica.Name, replica.Spec.Containers[0].Name, "/plugin", "version")
		s.must(err)
		if out = strings.TrimSpace(out); said != "" && out != said {
			s.Fatalf("replicas of the plugin say that they are %s and %s", said, out)
		}
		said = out
	}
	return said
}

// replicas returns the plugin's pods that are not being deleted.
func (s *story) replicas() []corev1.Pod {
	s.Helper()
	var pods corev1.PodList
	s.must(kube.List(s.ctx, &pods, client.InNamespace(scenario.OperatorNamespace), client.MatchingLabels(s.plugin().Spec.Selector.MatchLabels)))
	return slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })
}

// life identifies one run of PostgreSQL: the pod, its containers' restarts, and the postmaster's start time.
type life struct {
	pod      types.UID
	restarts int32
	started  string
}

// lives returns the lives of all instances of the clusters, by pod.
func (s *story) lives(clusters ...*cnpgv1.Cluster) map[string]life {
	s.Helper()
	found := map[string]life{}
	for _, c := range clusters {
		for _, pod := range s.instances(c) {
			started, err := kube.Exec(s.ctx, s.namespace, pod.Name, "postgres", "psql", "-XAtqU", "postgres", "-c", "select pg_postmaster_start_time()")
			s.must(err)
			found[pod.Name] = life{pod.UID, restarts(pod), strings.TrimSpace(started)}
		}
	}
	return found
}

// untouched checks that the operator, which knows no other version of the plugin any more, restarts no PostgreSQL of the clusters. In a
// reconciliation it copies inherited metadata to the pods before it compares their specifications, so the pods have the second round's
// when the first round's reconciliation has ended.
func (s *story) untouched(before map[string]life, v version, clusters ...*cnpgv1.Cluster) {
	s.Helper()
	s.othersGone()
	for range 3 {
		now := time.Now().Format(time.RFC3339Nano)
		patch := fmt.Appendf(nil, `{"spec":{"inheritedMetadata":{"annotations":{%q:%q}}}}`, scenario.Look, now)
		for _, c := range clusters {
			s.must(kube.Patch(s.ctx, c.DeepCopy(), client.RawPatch(types.MergePatchType, patch)))
		}
		for _, c := range clusters {
			for _, pod := range s.instances(c) {
				_, err := scenario.Await(s.ctx, kube, &pod, "with the metadata", toHealthy, func(pod *corev1.Pod) bool { return pod.Annotations[scenario.Look] == now })
				s.must(err)
			}
		}
	}
	for pod, life := range s.lives(clusters...) {
		if life != before[pod] {
			s.Errorf("%+v restarted %s: %+v, then %+v", v, pod, before[pod], life)
		}
	}
}

// carry checks that the sidecars of the clusters are of the version.
func (s *story) carry(v version, clusters ...*cnpgv1.Cluster) {
	s.Helper()
	for _, c := range clusters {
		if !s.carries(c, v) {
			s.Errorf("%s has another sidecar than %+v", c.Name, v)
		}
	}
}

func (s *story) carries(c *cnpgv1.Cluster, v version) bool {
	s.Helper()
	pods := s.instances(c)
	for _, pod := range pods {
		container := sidecar(pod)
		if container == nil || container.Image != v.sidecar || container.Resources.Requests.Cpu().String() != cmp.Or(v.request, defaultRequest) {
			return false
		}
	}
	return len(pods) == c.Spec.Instances
}

// updated waits until every instance has the sidecar and the cluster is healthy.
func (s *story) updated(c *cnpgv1.Cluster, v version) {
	s.Helper()
	begun := time.Now()
	_, err := kube.AwaitCluster(s.ctx, c, "updated to "+v.sidecar, toHealthy, func(c *cnpgv1.Cluster) bool {
		return scenario.Healthy(c) && s.carries(c, v)
	})
	s.must(err)
	s.Logf("%s runs %s after %.1fs", c.Name, v.sidecar, time.Since(begun).Seconds())
}

// looked is like updated, but makes the operator reconcile the cluster meanwhile: before 1.30 it does not notice a changed
// plugin by itself, and for a moment after a rollout it may still call a terminating replica.
func (s *story) looked(c *cnpgv1.Cluster, v version) {
	s.Helper()
	defer s.looking(c, 5*time.Second)()
	s.updated(c, v)
}

// looking annotates the cluster repeatedly until stopped, so that the operator reconciles it and its sidecar samples.
func (s *story) looking(c *cnpgv1.Cluster, every time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(s.ctx)
	var looks sync.WaitGroup
	looks.Go(func() {
		for ctx.Err() == nil {
			now := time.Now().Format(time.RFC3339Nano)
			if err := kube.Annotate(ctx, c, scenario.Look, &now); err != nil && ctx.Err() == nil {
				s.Error(err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(every):
			}
		}
	})
	return func() { cancel(); looks.Wait() }
}

// carriersCounted checks that every replica of the plugin soon reports how many pods of the cluster run the image; 0 means no
// series.
func (s *story) carriersCounted(c *cnpgv1.Cluster, image string, pods int) {
	s.Helper()
	series := fmt.Sprintf("cnpg_scale_to_zero_instance_pods{cluster=%q,namespace=%q,sidecar_image=%q} ", c.Name, s.namespace, image)
	for _, replica := range s.replicas() {
		for deadline := time.Now().Add(toSettle); ; pause(s, pollEvery) {
			page, err := kube.Page(s.ctx, replica.Namespace, replica.Name, "8080", "metrics")
			s.must(err)
			if pods == 0 && !strings.Contains(page, series) || strings.Contains(page, fmt.Sprintf("%s%d\n", series, pods)) {
				break
			}
			if time.Now().After(deadline) {
				s.Fatalf("%s does not say that %d pods of %s run %s", replica.Name, pods, c.Name, image)
			}
		}
	}
}

// watchInstances counts the pods that a cluster has had until the returned function is called.
func (s *story) watchInstances(c *cnpgv1.Cluster) func() int {
	s.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	stream, err := kube.Watch(ctx, &corev1.PodList{}, client.InNamespace(c.Namespace),
		client.MatchingLabels{"cnpg.io/cluster": c.Name, "cnpg.io/podRole": "instance"})
	s.must(err)
	count := make(chan int, 1)
	go func() {
		seen := map[types.UID]bool{}
		defer func() { count <- len(seen) }()
		for event := range stream.ResultChan() {
			if pod, is := event.Object.(*corev1.Pod); is {
				seen[pod.UID] = true
			}
		}
	}()
	return func() int { stream.Stop(); cancel(); return <-count }
}
