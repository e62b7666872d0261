package tests

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// dozeMinutes is the shortest time after which a cluster dozes, and dozeAfter its duration.
	dozeMinutes = "0.5"
	dozeAfter   = 30 * time.Second
	// dozesLater is a time that no test reaches, and shorter than never.
	dozesLater = "60"
	// toDoze bounds the wait for a PostgreSQL that is stopped for a doze, also after a wake: for half a minute the operator's instance
	// manager would not obey another fence. An attempt that the machine breaks off is repeated after 10, 20 and 40 s.
	toDoze = dozeAfter + 4*time.Minute
	// toReady bounds how long the gateway keeps its EndpointSlices after a cluster that was woken from a doze is ready.
	toReady = 16*time.Second + toSettle
)

// dozingCluster makes a cluster of one instance that dozes after half a minute, and never hibernates.
func (s *story) dozingCluster(name string) *cnpgv1.Cluster {
	s.Helper()
	c := kube.NewCluster(s.namespace, name, 1, never)
	c.Annotations[scenario.DozeMinutes] = dozeMinutes
	return s.running(c)
}

// dozes waits until PostgreSQL is stopped for a doze, and returns its pod.
func (s *story) dozes(c *cnpgv1.Cluster) corev1.Pod {
	s.Helper()
	_, err := kube.AwaitCluster(s.ctx, c, "dozing", toDoze, scenario.Dozing)
	s.must(err)
	pods := s.instances(c)
	if len(pods) != 1 {
		s.Fatalf("it dozes with %d pods", len(pods))
	}
	if c.Annotations[scenario.PostgresStopped] != string(pods[0].UID) || c.Annotations[scenario.Fence] != `["*"]` {
		s.Errorf("the annotations of a doze are %v", c.Annotations)
	}
	return pods[0]
}

// A cluster dozes, is woken by a client in its pod, which is never restarted, dozes again, hibernates, and is woken from that.
func TestDoze_wakesInItsPodAndHibernatesLater(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrowDozing()
	schedule := scenario.NewScheduledBackup(c, "yearly", "0 0 0 1 1 *")
	s.must(kube.Create(s.ctx, schedule))
	verify := s.trust(c)
	for _, settings := range []string{verify, "sslmode=disable"} {
		before := s.dozes(c)
		s.awaitSlices(c, toSettle, "rw", "r")
		_, err := scenario.Await(s.ctx, kube, schedule, "suspended", toSettle, suspended)
		s.must(err)
		s.annotate(c, scenario.DozeMinutes, dozesLater) // once woken, it might doze again before the gateway has left

		start := time.Now()
		answer, err := kube.QueryAs(s.ctx, c, "rw", fromAfar+" "+settings, "select 'answered'")
		s.must(err)
		t.Logf("answered after %.2fs: %s", time.Since(start).Seconds(), answer)
		s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
		for _, key := range []string{scenario.Fence, scenario.DozingSince, scenario.PostgresStopped} {
			if value, ok := c.Annotations[key]; ok {
				t.Errorf("answered, and %s is %q", key, value)
			}
		}
		s.tellsWho(c, s.client().Status.PodIP, settings)
		_, err = scenario.Await(s.ctx, kube, before.DeepCopy(), "ready", toHealthy, scenario.Ready)
		s.must(err)
		s.awaitSlices(c, toReady)
		s.resumed(schedule)
		after := s.instances(c)
		if len(after) != 1 || after[0].UID != before.UID {
			t.Fatalf("after the wake the pods are %v", after)
		}
		for _, status := range after[0].Status.ContainerStatuses {
			if status.RestartCount != 0 {
				t.Errorf("container %s was restarted", status.Name)
			}
		}
		if _, err := kube.QueryAs(s.ctx, c, "rw", verify, "select 1"); err != nil {
			t.Error(err)
		}
		s.annotate(c, scenario.DozeMinutes, dozeMinutes)
	}
	s.dozes(c)
	s.annotate(c, scenario.InactivityMinutes, "0.6")
	s.fallsAsleep(c, "asleep")
	_, err := kube.AwaitCluster(s.ctx, c, "without a fence", toSettle, func(c *cnpgv1.Cluster) bool { return c.Annotations[scenario.Fence] == "" })
	s.must(err)
	s.annotate(c, scenario.InactivityMinutes, never)
	answer, err := kube.QueryAs(s.ctx, c, "rw", fromAfar+" "+verify, "select 'awake'")
	s.must(err)
	if answer != "awake" {
		t.Errorf("the answer is %q", answer)
	}
}

// The kubectl plugin shows a doze, ends it, and turns it into hibernation.
func TestDoze_isCommanded(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	program := buildStatic(t, "../..", "./plugin/kubectl")
	run := func(arguments ...string) string {
		s.Helper()
		out, err := exec.CommandContext(s.ctx, program, append(arguments, "-n", s.namespace)...).CombinedOutput()
		if err != nil {
			s.Fatalf("%s: %v: %s", strings.Join(arguments, " "), err, out)
		}
		return string(out)
	}
	state := func() string {
		s.Helper()
		return run("status", "-o", "jsonpath={.clusters[*].state}")
	}
	c := s.borrowDozing()
	before := s.dozes(c)
	if got := state(); got != "dozing" {
		t.Errorf("dozing it is %q", got)
	}
	for command, want := range map[string]string{"status": "hibernates at ", "explain": "A client that connects wakes it."} {
		arguments := []string{command}
		if command == "explain" {
			arguments = append(arguments, c.Name)
		}
		if text := run(arguments...); !strings.Contains(text, want) {
			t.Errorf("%s does not say %q:\n%s", command, want, text)
		}
	}
	t.Logf("%s", run("wake", c.Name, "--wait"))
	if after := s.instances(c); len(after) != 1 || after[0].UID != before.UID || !scenario.Ready(&after[0]) {
		t.Errorf("after the wake the pods are %v", after)
	}
	if _, err := kube.QueryAs(s.ctx, c, "rw", s.trust(c), "select 1"); err != nil {
		t.Error(err)
	}
	if got := state(); got != "awake" {
		t.Errorf("woken it is %q", got)
	}
	s.dozes(c)
	t.Logf("%s", run("sleep", c.Name, "--timeout", toCommand))
	if got := state(); got != "asleep" {
		t.Errorf("put to sleep it is %q", got)
	}
	t.Logf("%s", run("wake", c.Name, "--wait"))
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
}

// requested returns a pod's request as its node counts it, and as kubectl describe node sums it up: for each container the largest of the
// desired, allocated and actual requests, or that of an init container if it is larger. No pod here has overhead for these resources.
func requested(pod *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	most := func(quantities ...resource.Quantity) resource.Quantity {
		return slices.MaxFunc(quantities, func(a, b resource.Quantity) int { return a.Cmp(b) })
	}
	var sum resource.Quantity
	for _, container := range pod.Spec.Containers {
		request := container.Resources.Requests[name]
		for _, status := range pod.Status.ContainerStatuses {
			if status.Name != container.Name {
				continue
			}
			request = most(request, status.AllocatedResources[name])
			if status.Resources != nil {
				request = most(request, status.Resources.Requests[name])
			}
		}
		sum.Add(request)
	}
	for _, container := range pod.Spec.InitContainers {
		sum = most(sum, container.Resources.Requests[name])
	}
	return sum
}

// A dozing cluster makes room for other pods' CPU, and takes it back at the wake, in the same containers. A quota may forbid that for
// a while.
func TestDoze_shrinksItsRequests(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := kube.NewCluster(s.namespace, "small", 1, never)
	c.Annotations[scenario.DozeMinutes] = dozeMinutes
	c.Spec.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m"), corev1.ResourceMemory: resource.MustParse("256Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
	}
	s.running(c)
	verify := s.trust(c)
	made := s.instances(c)[0]
	becomes := func(what, cpu string) time.Time {
		t.Helper()
		at, err := scenario.Await(s.ctx, kube, &made, what, time.Minute+toSettle, func(p *corev1.Pod) bool {
			sum := requested(p, corev1.ResourceCPU)
			return sum.String() == cpu
		})
		s.must(err)
		if memory := requested(&made, corev1.ResourceMemory); memory.String() != "288Mi" {
			t.Errorf("%s, it requests %s of memory", what, memory.String())
		}
		return at
	}
	becomes("made", "210m")
	wake := func() time.Time {
		t.Helper()
		start := time.Now()
		_, err := kube.QueryAs(s.ctx, c, "rw", fromAfar+" "+verify, "select 1")
		s.must(err)
		t.Logf("answered after %.2fs", time.Since(start).Seconds())
		return start
	}

	s.dozes(c)
	becomes("small", "20m")
	start := wake()
	t.Logf("grown %.2fs after the client came", becomes("grown", "210m").Sub(start).Seconds())

	s.dozes(c)
	becomes("small again", "20m")
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "cpu"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceRequestsCPU: resource.MustParse("100m")}},
	}
	s.must(kube.Create(s.ctx, quota))
	s.annotate(c, scenario.DozeMinutes, dozesLater) // with the small requests it would hibernate that long after the wake
	wake()
	_, err := kube.AwaitEvent(s.ctx, c, "GrowthRefused", toSettle)
	s.must(err)
	s.must(kube.Delete(s.ctx, quota))
	becomes("grown without the quota", "210m") // it is tried again once a minute

	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	after := s.instances(c)
	if len(after) != 1 || after[0].UID != made.UID {
		t.Fatalf("after the wakes the pods are %v", after)
	}
	for _, status := range after[0].Status.ContainerStatuses {
		if status.RestartCount != 0 {
			t.Errorf("container %s was restarted", status.Name)
		}
	}
}

// A Guaranteed pod dozes and keeps its requests: smaller ones would need smaller limits.
func TestDoze_keepsTheRequestsOfAGuaranteedPod(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := kube.NewCluster(s.namespace, "guaranteed", 1, never)
	c.Annotations[scenario.DozeMinutes] = dozeMinutes
	all := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("300m"), corev1.ResourceMemory: resource.MustParse("256Mi")}
	c.Spec.Resources = corev1.ResourceRequirements{Requests: all, Limits: all}
	s.running(c)
	verify := s.trust(c)
	before := s.instances(c)[0]
	if before.Status.QOSClass != corev1.PodQOSGuaranteed {
		t.Fatalf("the pod is %s", before.Status.QOSClass)
	}
	s.dozes(c)
	changed := func(p *corev1.Pod) bool {
		return slices.ContainsFunc([]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}, func(name corev1.ResourceName) bool {
			now, then := requested(p, name), requested(&before, name)
			return now.Cmp(then) != 0
		})
	}
	s.logs(before.Name, before.CreationTimestamp.Time, "the requests of PostgreSQL's container stay as they are")
	s.wakesByClient(c, verify)
	if now := s.instances(c); len(now) != 1 || now[0].UID != before.UID || restarts(now[0]) != 0 || changed(&now[0]) {
		t.Error("the pod was replaced or resized, or a container restarted")
	}
}

// logs waits until the sidecar of a pod has logged a line with the words since then.
func (s *story) logs(pod string, since time.Time, words ...string) {
	s.Helper()
	for deadline := time.Now().Add(toSettle); ; pause(s, pollEvery) {
		written, err := kube.LogsSince(s.ctx, s.namespace, pod, scenario.SidecarContainer, since)
		for line := range strings.Lines(written) {
			var entry struct{ Time time.Time }
			lacks := slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) })
			if !lacks && json.Unmarshal([]byte(line), &entry) == nil && !entry.Time.Before(since) {
				return
			}
		}
		if time.Now().After(deadline) {
			s.Fatalf("the sidecar does not write %q: %v\n%s", words, err, written)
		}
	}
}
