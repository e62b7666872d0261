package plan

import (
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func announcement(ahead time.Duration) string {
	return "pod-uid " + now.Add(ahead).Format(time.RFC3339Nano)
}

func by(manager string) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{
		{Manager: "kubectl", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{}}`)}},
		{Manager: manager, FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:annotations":{"f:cnpg.io/hibernation":{}}}}`)}},
	}
}

// maintained begins a node maintenance.
func maintained(reuse *bool) func(*cnpgv1.Cluster) {
	return func(c *cnpgv1.Cluster) {
		c.Spec.NodeMaintenanceWindow = &cnpgv1.NodeMaintenanceWindow{InProgress: true, ReusePVC: reuse}
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	both := []types.UID{"rw", "r"}
	live := announcement(20 * time.Second)
	asleep := func(c *cnpgv1.Cluster) {
		c.Annotations[contract.AnnotationHibernation] = "on"
		c.ManagedFields = by(contract.FieldManager)
	}
	annotate := func(key, value string) func(*cnpgv1.Cluster) {
		return func(c *cnpgv1.Cluster) { c.Annotations[key] = value }
	}
	routed := func(ready ...bool) []Service {
		return []Service{{UID: "rw", Led: true, Ready: ready[0]}, {UID: "r", Led: true, Ready: ready[1]}}
	}
	for _, row := range []struct {
		rule     string
		changes  []func(*cnpgv1.Cluster)
		services []Service
		want     Routes
	}{
		{"an awake cluster has nothing of ours", nil, nil, Routes{Reason: ReasonAwake}},
		{"an announcement leads every Service here and is acknowledged", []func(*cnpgv1.Cluster){annotate(contract.AnnotationAnnounced, live)}, nil,
			Routes{Lead: both, Reason: ReasonAnnounced, Acknowledge: live, Next: now.Add(20 * time.Second)}},
		{"one that was acknowledged is not again", []func(*cnpgv1.Cluster){annotate(contract.AnnotationAnnounced, live), annotate(contract.AnnotationGatewayReady, live)}, nil,
			Routes{Lead: both, Reason: ReasonAnnounced, Next: now.Add(20 * time.Second)}},
		{"an older acknowledgement is not one of this announcement", []func(*cnpgv1.Cluster){annotate(contract.AnnotationAnnounced, live), annotate(contract.AnnotationGatewayReady, announcement(time.Second))}, nil,
			Routes{Lead: both, Reason: ReasonAnnounced, Acknowledge: live, Next: now.Add(20 * time.Second)}},
		{"after the deadline the slices go", []func(*cnpgv1.Cluster){annotate(contract.AnnotationAnnounced, announcement(0))}, routed(true, true), Routes{Reason: ReasonAwake}},
		{"after the deadline they go even where a Service is not ready", []func(*cnpgv1.Cluster){annotate(contract.AnnotationAnnounced, announcement(-time.Second))}, routed(false, true), Routes{Reason: ReasonAwake}},
		{"an acknowledgement is removed before they go", []func(*cnpgv1.Cluster){annotate(contract.AnnotationAnnounced, announcement(0)), annotate(contract.AnnotationGatewayReady, announcement(0))}, routed(true, true),
			Routes{Lead: both, Reason: ReasonAnnounced, Revoke: true}},
		{"not one that another replica's clock has let it give", []func(*cnpgv1.Cluster){annotate(contract.AnnotationAnnounced, announcement(31*time.Second)), annotate(contract.AnnotationGatewayReady, announcement(31*time.Second))}, nil,
			Routes{Reason: ReasonAwake, Next: now.Add(time.Second)}},
		{"a deadline more than 30 s ahead does not count yet", []func(*cnpgv1.Cluster){annotate(contract.AnnotationAnnounced, announcement(31*time.Second))}, nil,
			Routes{Reason: ReasonAwake, Next: now.Add(time.Second)}},
		{"what is no announcement is none", []func(*cnpgv1.Cluster){annotate(contract.AnnotationAnnounced, "soon")}, nil, Routes{Reason: ReasonAwake}},
		{"a cluster that we put to sleep is woken by connections", []func(*cnpgv1.Cluster){asleep}, nil, Routes{Lead: both, Reason: ReasonAsleep}},
		{"one that a person put to sleep is not", []func(*cnpgv1.Cluster){asleep, func(c *cnpgv1.Cluster) { c.ManagedFields = by("kubectl-annotate") }}, routed(false, false), Routes{Reason: ReasonByHand}},
		{"nor one whose sleep somebody applies beside us", []func(*cnpgv1.Cluster){asleep, func(c *cnpgv1.Cluster) {
			theirs := by("argocd-controller")[1]
			theirs.Operation = metav1.ManagedFieldsOperationApply
			c.ManagedFields = append(c.ManagedFields, theirs)
		}}, routed(false, false), Routes{Reason: ReasonByHand}},
		{"a woken cluster's Services lead here until each is ready", nil, routed(true, false), Routes{Lead: []types.UID{"r"}, Reason: ReasonWaking, Next: now.Add(time.Minute)}},
		{"an announcement that was taken back leaves nothing", nil, routed(true, true), Routes{Reason: ReasonAwake}},
		{"a Service that is not ready on an awake cluster is not routed here", nil, []Service{{UID: "rw"}}, Routes{Reason: ReasonAwake}},
		{"wake=manual disarms a sleeping cluster", []func(*cnpgv1.Cluster){asleep, annotate(contract.AnnotationWake, "manual")}, routed(false, false), Routes{Reason: ReasonManual, Unwakeable: true}},
		{"wake=manual needs no acknowledgement", []func(*cnpgv1.Cluster){annotate(contract.AnnotationAnnounced, live), annotate(contract.AnnotationWake, "manual")}, nil, Routes{Reason: ReasonManual}},
		{"what only a window wakes is acknowledged, and no Service leads to the gateway", []func(*cnpgv1.Cluster){annotate(contract.AnnotationAnnounced, live), annotate(contract.AnnotationWake, "window")}, nil,
			Routes{Reason: ReasonAnnounced, Acknowledge: live, Next: now.Add(20 * time.Second)}},
		{"once", []func(*cnpgv1.Cluster){annotate(contract.AnnotationAnnounced, live), annotate(contract.AnnotationGatewayReady, live), annotate(contract.AnnotationWake, "window")}, nil,
			Routes{Reason: ReasonAnnounced, Next: now.Add(20 * time.Second)}},
		{"not before a wake's Services have endpoints of their own", []func(*cnpgv1.Cluster){annotate(contract.AnnotationAnnounced, live), annotate(contract.AnnotationWake, "window")}, routed(true, false),
			Routes{Lead: []types.UID{"r"}, Reason: ReasonWaking, Next: now.Add(time.Minute)}},
		{"not after the deadline", []func(*cnpgv1.Cluster){annotate(contract.AnnotationAnnounced, announcement(0)), annotate(contract.AnnotationWake, "window")}, nil, Routes{Reason: ReasonManual}},
		{"enabled=false disarms a sleeping cluster", []func(*cnpgv1.Cluster){asleep, annotate(contract.AnnotationEnabled, "false")}, nil, Routes{Reason: ReasonDisabled, Unwakeable: true}},
		{"a bad annotation disarms it", []func(*cnpgv1.Cluster){asleep, annotate(contract.AnnotationActivity, "x")}, nil, Routes{Reason: ReasonInvalid, Unwakeable: true}},
		{"a time too far ahead disarms it until it has come near enough", []func(*cnpgv1.Cluster){asleep, annotate(contract.AnnotationKeepAwakeUntil, now.Add(8*24*time.Hour).Format(time.RFC3339))}, nil,
			Routes{Reason: ReasonInvalid, Unwakeable: true, Next: now.Add(24 * time.Hour)}},
		{"but not where another annotation is bad as well", []func(*cnpgv1.Cluster){asleep, annotate(contract.AnnotationKeepAwakeUntil, now.Add(8*24*time.Hour).Format(time.RFC3339)), annotate(contract.AnnotationActivity, "x")}, nil,
			Routes{Reason: ReasonInvalid, Unwakeable: true}},
		{"a plugin that is turned off disarms it", []func(*cnpgv1.Cluster){asleep, func(c *cnpgv1.Cluster) { c.Spec.Plugins[0].Enabled = ptr.To(false) }}, nil, Routes{Reason: ReasonNotListed, Unwakeable: true}},
		{"a sleeping cluster whose volumes a wake would risk tells its clients so", []func(*cnpgv1.Cluster){asleep, maintained(ptr.To(false))}, nil, Routes{Lead: both, Reason: ReasonMaintenance}},
		{"volumes that are reused are not at risk", []func(*cnpgv1.Cluster){asleep, maintained(ptr.To(true))}, nil, Routes{Lead: both, Reason: ReasonAsleep}},
		{"they are reused unless the Cluster says otherwise", []func(*cnpgv1.Cluster){asleep, maintained(nil)}, nil, Routes{Lead: both, Reason: ReasonAsleep}},
		{"a window that is planned puts nothing at risk", []func(*cnpgv1.Cluster){asleep, maintained(ptr.To(false)), func(c *cnpgv1.Cluster) { c.Spec.NodeMaintenanceWindow.InProgress = false }}, nil,
			Routes{Lead: both, Reason: ReasonAsleep}},
		{"what a person put to sleep has nothing of ours during maintenance either", []func(*cnpgv1.Cluster){asleep, maintained(ptr.To(false)), func(c *cnpgv1.Cluster) { c.ManagedFields = by("kubectl-annotate") }}, nil,
			Routes{Reason: ReasonByHand}},
		{"an announcement while volumes are at risk is not acknowledged", []func(*cnpgv1.Cluster){annotate(contract.AnnotationAnnounced, live), maintained(ptr.To(false))}, nil, Routes{Reason: ReasonAwake}},
		{"a woken cluster's Services lead here until each is ready, maintenance or not", []func(*cnpgv1.Cluster){maintained(ptr.To(false))}, routed(true, false),
			Routes{Lead: []types.UID{"r"}, Reason: ReasonWaking, Next: now.Add(time.Minute)}},
		{"a cluster that is being deleted has nothing of ours", []func(*cnpgv1.Cluster){asleep, func(c *cnpgv1.Cluster) { c.DeletionTimestamp = &metav1.Time{Time: now} }}, nil, Routes{Reason: ReasonGone}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			cluster := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{contract.AnnotationEnabled: "true"}}}
			cluster.Spec.Plugins = []cnpgv1.PluginConfiguration{{Name: contract.PluginName}}
			for _, change := range row.changes {
				change(cluster)
			}
			services := row.services
			if services == nil {
				services = []Service{{UID: "rw", Ready: true}, {UID: "r", Ready: true}}
			}
			state := routing{Cluster: View(cluster, now), Services: services, WakingUntil: now.Add(time.Minute)}
			if diff := cmp.Diff(row.want, state.routes(now)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("a Service that does not get ready is given up", func(t *testing.T) {
		t.Parallel()
		state := routing{Cluster: Cluster{Listed: true, Policy: idle.Policy{Enabled: true}}, Services: routed(false, false), WakingUntil: now}
		if diff := cmp.Diff(Routes{Reason: ReasonAwake}, state.routes(now)); diff != "" {
			t.Errorf("plan (-want +got):\n%s", diff)
		}
	})
}
