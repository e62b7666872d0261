package plan

import (
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestLoop_endsOnlyWhileTheClusterDozesAsItWasFenced(t *testing.T) {
	t.Parallel()
	type cluster = *cnpgv1.Cluster
	both := func(change func(cluster)) func(*Loop) {
		return func(l *Loop) { change(l.Kept); change(l.Sent) }
	}
	kept := func(change func(cluster)) func(*Loop) { return func(l *Loop) { change(l.Kept) } }
	sent := func(change func(cluster)) func(*Loop) { return func(l *Loop) { change(l.Sent) } }
	pod := func(change func(*corev1.Pod)) func(*Loop) { return func(l *Loop) { change(&l.Instances[0]) } }
	without := func(key string) func(cluster) { return func(c cluster) { delete(c.Annotations, key) } }
	deleted := func(c cluster) { c.DeletionTimestamp = &metav1.Time{Time: now} }
	changed := func(c cluster) { c.Generation++ }
	upgraded := func(c cluster) { c.Status.CommitHash = "b2" }
	replaced := func(c cluster) { c.UID = "another" }
	hibernated := annotate(contract.AnnotationHibernation, "on")
	requested := annotate(contract.AnnotationSleepRequested, now.Format(time.RFC3339))
	plugin := func(name, version string) func(cluster) {
		return func(c cluster) { c.Status.PluginStatus = []cnpgv1.PluginStatus{{Name: name, Version: version}} }
	}
	for _, row := range []struct {
		rule   string
		change func(*Loop)
		want   bool
	}{
		{"it dozes", func(*Loop) {}, true},
		{"a new version of this plugin replaces no instance", both(func(c cluster) {
			c.Status.PluginStatus = append(c.Status.PluginStatus, cnpgv1.PluginStatus{Name: contract.PluginName, Version: "9"})
		}), true},
		{"the failure of an earlier call is nothing to complete", sent(func(c cluster) { c.Status.Phase = cnpgv1.PhaseFailurePlugin }), true},
		{"an old request to hibernate means nothing", both(annotate(contract.AnnotationSleepRequested, now.Add(-time.Hour).Format(time.RFC3339))), true},
		{"a hibernation that was turned off is none", both(annotate(contract.AnnotationHibernation, "off")), true},

		{"not while it is awake", both(func(c cluster) { unfenced(c); delete(c.Annotations, contract.AnnotationPostgresStopped) }), false},
		{"nor when a person has fenced it", both(func(c cluster) { c.ManagedFields[0].Manager = "kubectl-cnpg" }), false},
		{"nor before PostgreSQL has stopped", both(without(contract.AnnotationPostgresStopped)), false},
		{"nor after the fence was lifted", both(unfenced), false},
		{"nor when only the operator knows that", sent(unfenced), false},
		{"nor when only the informers do", kept(unfenced), false},
		{"nor when the operator knows of another doze", sent(annotate(contract.AnnotationDozingSince, now.Format(time.RFC3339))), false},
		{"nor of another stop", sent(annotate(contract.AnnotationPostgresStopped, "another")), false},
		{"nor of another fence", sent(annotate(contract.AnnotationFencedInstances, `["orders-1"]`)), false},
		{"nor while it hibernates", both(hibernated), false},
		{"nor when only the operator knows that", sent(hibernated), false},
		{"nor when hibernation is asked for", both(requested), false},
		{"nor when only the operator knows that", sent(requested), false},
		{"nor while it is deleted", both(deleted), false},
		{"nor when only the operator knows that", sent(deleted), false},
		{"nor when it does not list the plugin", both(func(c cluster) { c.Spec.Plugins = nil }), false},
		{"nor when the plugin is off", both(func(c cluster) { c.Spec.Plugins[0].Enabled = ptr.To(false) }), false},

		{"nor after its specification has changed", both(changed), false},
		{"nor when only the operator knows that", sent(changed), false},
		{"nor when only the informers do", kept(changed), false},
		{"nor under another version of the operator", both(upgraded), false},
		{"nor when only that knows it", sent(upgraded), false},
		{"nor with another version of a plugin", both(plugin("backup", "2")), false},
		{"nor with another plugin", both(plugin("other", "1")), false},
		{"nor without one", both(func(c cluster) { c.Status.PluginStatus = nil }), false},
		{"nor for another Cluster of the name", both(replaced), false},
		{"nor when only the operator knows that one", sent(replaced), false},
		{"nor before its specification is known", func(l *Loop) { l.Fenced = Specification{} }, false},
		{"nor while the operator has something to complete", sent(func(c cluster) { c.Status.Phase = cnpgv1.PhaseCreatingReplica }), false},

		{"nor without a pod", func(l *Loop) { l.Instances = nil }, false},
		{"nor when only the operator has seen it go", sent(func(c cluster) { c.Status.Instances = 0 }), false},
		{"nor while it is pending", pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), false},
		{"nor when it has failed", pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), false},
		{"nor while it is deleted", pod(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }), false},
		{"nor with another pod than that of the doze", pod(func(p *corev1.Pod) { p.UID = "another" }), false},
		{"nor with two pods", func(l *Loop) { l.Instances = append(l.Instances, l.Instances[0]) }, false},
		{"nor when only the operator has seen the second", sent(func(c cluster) { c.Status.Instances = 2 }), false},
		{"nor when another is to be the primary", sent(func(c cluster) { c.Status.TargetPrimary = "orders-2" }), false},
		{"nor when another is the primary", sent(func(c cluster) { c.Status.CurrentPrimary = "orders-2" }), false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			dozes := func() cluster {
				c := made(dozing, plugin("backup", "1"))
				c.UID, c.Generation = "cluster", 7
				c.Status.CommitHash, c.Status.Phase, c.Status.Instances = "a1", cnpgv1.PhaseHealthy, 1
				c.Status.CurrentPrimary, c.Status.TargetPrimary = "orders-1", "orders-1"
				return c
			}
			l := Loop{Kept: dozes(), Sent: dozes(), Instances: []corev1.Pod{{
				ObjectMeta: metav1.ObjectMeta{Name: "orders-1", UID: "pod-uid"}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
			}}}
			l.Fenced = SpecificationOf(l.Kept)
			if row.change(&l); l.Ends(now) != row.want {
				t.Errorf("the loop ends: %t", !row.want)
			}
		})
	}
}

func TestLoopInterval_spreadsAFleet(t *testing.T) {
	t.Parallel()
	found := map[time.Duration]bool{}
	for i := range 1000 {
		uid := types.UID(time.Unix(int64(i), 0).String())
		interval := LoopInterval(uid)
		if interval < 30*time.Second || interval > time.Minute || interval%time.Second != 0 || interval != LoopInterval(uid) {
			t.Errorf("%s: %s", uid, interval)
		}
		found[interval] = true
	}
	if len(found) < 25 {
		t.Errorf("only %d intervals for a thousand clusters", len(found))
	}
}
