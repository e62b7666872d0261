package tests

import (
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// platform is clusters in several Namespaces that one label selects, and what the commands of docs/guides/fleet.md did to them.
type platform struct {
	*story
	program, selector string
	namespaces        []*corev1.Namespace
	clusters          []*cnpgv1.Cluster
}

// A preview platform is enrolled by the commands of docs/guides/fleet.md: observed, reported, enabled, put to sleep by defaults of
// its Namespaces, one cluster left out, and detached. No instance restarts but by the two steps that say so.
func TestPreviewPlatform(t *testing.T) {
	whole(t)
	t.Parallel()
	size, of, waves, together := 8, 4, 1, 1
	if soaking { // in waves, because two cores do not keep forty clusters awake
		size, waves, together = 40, of, 4
	}
	p := &platform{story: begin(t)}
	p.program, p.selector = p.command(), "platform="+p.namespace
	for range of {
		name, err := kube.Namespace(p.ctx, "preview")
		p.must(err)
		namespace := &corev1.Namespace{}
		namespace.Name = name
		t.Cleanup(func() { _ = deleteNamespace(cleanup(t), name) })
		p.namespaces = append(p.namespaces, namespace)
	}
	for i := range size {
		c := kube.NewCluster(p.namespaces[i*of/size].Name, fmt.Sprintf("preview-%d", i), 1, never)
		c.Spec.Plugins, c.Annotations = nil, nil
		c.Labels = map[string]string{"platform": p.namespace, "scale-to-zero": fmt.Sprintf("wave-%d", i*waves/size)}
		p.clusters = append(p.clusters, c)
	}
	enrolled := make([]*platform, waves)
	for i := range enrolled {
		wave := *p
		wave.selector += fmt.Sprintf(",scale-to-zero=wave-%d", i)
		wave.namespaces = p.namespaces[i*of/waves : (i+1)*of/waves]
		wave.clusters = p.clusters[i*size/waves : (i+1)*size/waves]
		for group := range slices.Chunk(wave.clusters, together) {
			p.starts(group...)
		}
		wave.enrol()
		enrolled[i] = &wave
	}
	if out := p.do("status", "-o", "jsonpath={.clusters[*].cluster}"); len(strings.Fields(out)) != size {
		t.Errorf("the status does not have %d clusters:\n%s", size, out)
	}
	for _, wave := range enrolled {
		wave.leave()
	}
}

// enrol observes and enables the clusters, until all but the first one sleep.
func (p *platform) enrol() {
	p.Helper()
	p.states("not enrolled", "status", "--all")
	before := p.pods(false)
	if out := p.do("observe", "--dry-run"); strings.Count(out, "dry run") != len(p.clusters) {
		p.Errorf("the dry run does not name %d clusters:\n%s", len(p.clusters), out)
	}
	if !maps.Equal(before, p.pods(false)) {
		p.Error("a dry run restarts instances")
	}
	p.do("observe", "--at-a-time", "3")
	observed := p.pods(true)
	p.states("observed", "status")
	if out := p.do("report"); strings.Count(out, "preview-") < len(p.clusters) {
		p.Errorf("the report does not have %d clusters:\n%s", len(p.clusters), out)
	}

	p.do("enable")
	excepted := p.clusters[0]
	p.run("disable", excepted.Name, "-n", excepted.Namespace)
	for _, namespace := range p.namespaces { // one after the other: two cores do not stop them all at once
		// Not soon: after a sample that failed, ten clusters of two cores would try again every three seconds, and keep the cores busy.
		p.annotate(namespace, scenario.InactivityMinutes, "0.5")
		for _, c := range p.clusters[1:] {
			if c.Namespace == namespace.Name {
				_, err := kube.AwaitCluster(p.ctx, c, "put to sleep by the default of its Namespace", toHealthy, scenario.HibernationOn)
				p.must(err)
			}
		}
	}
	p.must(kube.Get(p.ctx, client.ObjectKeyFromObject(excepted), excepted))
	if scenario.HibernationOn(excepted) {
		p.Error("the cluster that is left out was put to sleep")
	}
	if after := p.uid(excepted); after != observed[client.ObjectKeyFromObject(excepted)] {
		p.Error("the cluster that is left out has restarted since it was observed")
	}
}

// leave wakes the clusters, detaches and deletes them.
func (p *platform) leave() {
	p.Helper()
	for _, namespace := range p.namespaces {
		p.annotate(namespace, scenario.InactivityMinutes, never)
	}
	for _, c := range p.clusters[1:] {
		p.run("wake", c.Name, "-n", c.Namespace, "--wait")
	}
	p.do("detach", "--at-a-time", "3")
	p.pods(false)
	p.states("not enrolled", "status", "--all")
	for _, namespace := range p.namespaces {
		p.must(deleteNamespace(p.ctx, namespace.Name))
	}
}

// run runs the command, which must succeed, and returns what it says.
func (p *platform) run(arguments ...string) string {
	p.Helper()
	out, err := exec.CommandContext(p.ctx, p.program, arguments...).CombinedOutput()
	p.Logf("%s\n%s", strings.Join(arguments, " "), out)
	p.must(err)
	return string(out)
}

// do is run for the clusters that the selector selects.
func (p *platform) do(arguments ...string) string {
	p.Helper()
	return p.run(append(arguments, "-A", "-l", p.selector)...)
}

// states checks that the command says the same state of every cluster.
func (p *platform) states(state string, arguments ...string) {
	p.Helper()
	out := p.do(append(arguments, "-o", `jsonpath={range .clusters[*]}{.state}{"\n"}{end}`)...)
	if got, want := out, strings.Repeat(state+"\n", len(p.clusters)); strings.TrimSpace(got) != strings.TrimSpace(want) {
		p.Errorf("the states are %q, want %d times %q", got, len(p.clusters), state)
	}
}

// pods waits until every cluster's pod is ready, with a sidecar or without, and returns their UIDs.
func (p *platform) pods(with bool) map[types.NamespacedName]types.UID {
	p.Helper()
	found := map[types.NamespacedName]types.UID{}
	for _, c := range p.clusters {
		pod := &corev1.Pod{}
		pod.Namespace, pod.Name = c.Namespace, c.Name+"-1"
		_, err := scenario.Await(p.ctx, kube, pod, "restarted", toHealthy, func(pod *corev1.Pod) bool {
			return (sidecar(*pod) != nil) == with && scenario.Ready(pod)
		})
		p.must(err)
		found[client.ObjectKeyFromObject(c)] = pod.UID
	}
	return found
}

// uid is that of the cluster's pod.
func (p *platform) uid(c *cnpgv1.Cluster) types.UID {
	p.Helper()
	var pod corev1.Pod
	p.must(kube.Get(p.ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Name + "-1"}, &pod))
	return pod.UID
}
