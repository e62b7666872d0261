package tests

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/cluster"
	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// Every replica of the plugin is lost without notice while clusters sleep, and none comes back. A user who follows
// docs/guides/uninstall.md has clusters that serve without the plugin, with their data and schedules: with the command line, without it,
// and from a doze.
func TestPluginGoneForGood(t *testing.T) {
	whole(t)
	s := disturbing(t)
	program, r := buildStatic(t, "../..", "./plugin/kubectl"), s.reads()
	detached, patched, dozing := s.cluster("detached", 1), s.cluster("patched", 1), s.cluster("dozing", 1)
	dozing.Annotations[scenario.DozeMinutes] = dozesLater
	all := []*cnpgv1.Cluster{detached, patched, dozing}
	s.together(all...)
	for _, c := range all {
		_, err := kube.Query(s.ctx, c, "rw", "create table kept as select 42 as answer")
		s.must(err)
	}
	schedule := scenario.NewScheduledBackup(detached, "detached", "0 0 0 1 1 *")
	s.must(kube.Create(s.ctx, schedule))
	d := s.turn(all...)
	s.annotate(dozing, scenario.DozeMinutes, dozeMinutes)
	s.sleepTogether(detached, patched)
	s.dozes(dozing)

	replicas := *s.plugin().Spec.Replicas
	t.Cleanup(func() { s.ctx = cleanup(t); d.scalePlugin(replicas) })
	for _, replica := range s.replicas() {
		if _, err := d.powerOff(replica); errors.Is(err, scenario.ErrNotHere) {
			s.unseen()
		} else {
			s.must(err)
		}
	}
	d.scalePlugin(0)
	d.killPlugin()
	s.othersGone()
	for _, c := range all {
		if len(s.slices(c)) == 0 {
			t.Errorf("%s: no slice of a lost replica is left", c.Name) // without them the rest would prove little
		}
	}

	do := func(section, command string, c *cnpgv1.Cluster) {
		s.Helper()
		r.does(program, c, documented(t, section, command))
	}
	const gone, byHand = "If the plugin is gone already", "Without the command line"
	do(gone, "kubectl scale_to_zero detach NAME", detached)
	do(gone, "kubectl scale_to_zero wake NAME", detached)
	do(gone, "kubectl patch scheduledbackup NAME", detached)
	do(byHand, "kubectl patch cluster NAME", patched)
	do(byHand, "kubectl annotate cluster NAME cnpg.io/hibernation-", patched)
	do(gone, "kubectl scale_to_zero detach NAME", dozing)
	do(gone, "kubectl annotate cluster NAME cnpg.io/fencedInstances-", dozing)
	do(gone, "kubectl get rolebindings,roles", detached)
	do(gone, "kubectl delete endpointslices", detached)

	for _, c := range all {
		began := time.Now()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name + "-1"}}
		_, err := scenario.Await(s.ctx, kube, pod, "ready without the sidecar", toHealthy, func(p *corev1.Pod) bool { return sidecar(*p) == nil && scenario.Ready(p) })
		s.must(err)
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
		s.must(kube.AwaitReachable(s.ctx, c, "rw", toSettle))
		answer, err := kube.Query(s.ctx, c, "rw", "select answer from kept")
		if err != nil || answer != "42" {
			t.Errorf("%s answers %q (%v)", c.Name, answer, err)
		}
		t.Logf("%s served without the plugin after another %.1fs", c.Name, time.Since(began).Seconds())
	}
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(schedule), schedule))
	if _, marked := schedule.Annotations[scenario.Suspended]; suspended(schedule) || marked {
		t.Errorf("the schedule is suspended %t and marked %t", suspended(schedule), marked)
	}
}

// documented returns the line of a section of docs/guides/uninstall.md that begins with these words.
func documented(t *testing.T, section, begins string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/guides/uninstall.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	line := regexp.MustCompile(`(?m)^    (` + regexp.QuoteMeta(begins) + `.*)$`).FindStringSubmatch(text)
	if line == nil {
		t.Fatalf("docs/guides/uninstall.md does not say %q under %q", begins, section)
	}
	return line[1]
}

// The operator is upgraded while clusters sleep, hibernated and dozing: it wakes none of them, and each answers its next client at the first
// attempt.
func TestOperatorUpgradedWhileClustersSleep(t *testing.T) {
	whole(t)
	s := disturbing(t)
	s.onlyHere()
	hibernated, dozing := s.cluster("hibernated", 1), s.cluster("dozing", 1)
	dozing.Annotations[scenario.DozeMinutes] = dozesLater
	s.together(hibernated, dozing)
	for _, c := range []*cnpgv1.Cluster{hibernated, dozing} {
		_, err := kube.Query(s.ctx, c, "rw", "create table kept as select 42 as answer")
		s.must(err)
	}
	d := s.turn(hibernated, dozing)
	before := s.deployment(operatorDeployment).Spec.Template
	next := *before.DeepCopy()
	image := before.Spec.Containers[0].Image
	layout, err := cluster.DefaultLayout("..")
	s.must(err)
	s.must(layout.Tag(s.ctx, image, image+"-1"))
	next.Spec.Containers[0].Image = image + "-1"
	next.Spec.Containers[0].Env = withVariable(next.Spec.Containers[0].Env, "OPERATOR_IMAGE_NAME", image+"-1")

	s.annotate(dozing, scenario.DozeMinutes, dozeMinutes)
	s.sleepTogether(hibernated)
	s.dozes(dozing)
	t.Cleanup(func() { s.ctx = cleanup(t); d.setOperator(before) })
	d.setOperator(next)
	began := time.Now()
	s.asleep(hibernated, "the operator was upgraded")
	for _, c := range []*cnpgv1.Cluster{hibernated, dozing} {
		answer, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, "select answer from kept")
		if err != nil || answer != "42" {
			t.Errorf("%s: a client got %q (%v)", c.Name, answer, err)
		}
		s.wokenSince(c, began, fmt.Sprintf("%s, after the operator was upgraded", c.Name))
		// The cluster that dozed is healthy as soon as it is woken, and then the operator replaces its pod.
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: c.Status.CurrentPrimary}}
		_, err = scenario.Await(s.ctx, kube, pod, "created by the new operator, and ready", toHealthy,
			func(p *corev1.Pod) bool { return p.Spec.InitContainers[0].Image == image+"-1" && scenario.Ready(p) })
		s.must(err)
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
		s.awaitSlices(c, between+toSettle)
	}
}
