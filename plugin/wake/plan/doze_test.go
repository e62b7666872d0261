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
)

func annotate(key, value string) func(*cnpgv1.Cluster) {
	return func(c *cnpgv1.Cluster) { c.Annotations[key] = value }
}

// fenced fences the cluster, as that field manager.
func fenced(manager string) func(*cnpgv1.Cluster) {
	return func(c *cnpgv1.Cluster) {
		c.Annotations[contract.AnnotationFencedInstances] = contract.FencedInstancesAll
		c.Annotations[contract.AnnotationDozingSince] = now.Add(-time.Hour).Format(time.RFC3339)
		c.ManagedFields = append(c.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: manager, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:cnpg.io/fencedInstances":{}}}}`),
		})
	}
}

// dozing is a cluster whose PostgreSQL has stopped.
func dozing(c *cnpgv1.Cluster) {
	fenced(contract.FieldManager)(c)
	c.Annotations[contract.AnnotationPostgresStopped] = "pod-uid"
}

// unfenced lifts the fence, as a person does.
func unfenced(c *cnpgv1.Cluster) { delete(c.Annotations, contract.AnnotationFencedInstances) }

func switchedOn(c *cnpgv1.Cluster) {
	c.Annotations[contract.AnnotationHibernation] = "on"
	c.ManagedFields = append(c.ManagedFields, by(contract.FieldManager)...)
}

// made is a Cluster with the feature on that was changed.
func made(changes ...func(*cnpgv1.Cluster)) *cnpgv1.Cluster {
	cluster := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{contract.AnnotationEnabled: "true"}}}
	cluster.Spec.Plugins = []cnpgv1.PluginConfiguration{{Name: contract.PluginName}}
	for _, change := range changes {
		change(cluster)
	}
	return cluster
}

func TestRoutes_ofADoze(t *testing.T) {
	t.Parallel()
	both := []types.UID{"rw", "r"}
	live, past := announcement(20*time.Second)+" doze", announcement(-time.Second)+" doze"
	acknowledged := func(value string) func(*cnpgv1.Cluster) {
		return func(c *cnpgv1.Cluster) {
			c.Annotations[contract.AnnotationAnnounced], c.Annotations[contract.AnnotationGatewayReady] = value, value
		}
	}
	dozes := annotate(contract.AnnotationDozeMinutes, "5")
	with := func(changes ...func(*cnpgv1.Cluster)) []func(*cnpgv1.Cluster) { return changes }
	direct := []Service{{UID: "rw", Led: true, Ready: true, Direct: true}, {UID: "r", Led: true, Ready: true, Direct: true}}
	none := []Service{{UID: "rw", Led: true}, {UID: "r", Led: true}}
	since := func(rw, r time.Duration) []Service {
		return []Service{
			{UID: "rw", Led: true, Ready: true, Direct: true, ReadySince: now.Add(-rw)},
			{UID: "r", Led: true, Ready: true, Direct: true, ReadySince: now.Add(-r)},
		}
	}
	announced := Routes{Lead: both, Reason: ReasonAnnounced, Next: now.Add(20 * time.Second)}
	held := announced
	held.Hold = live
	asleep := Routes{Lead: both, Reason: ReasonDozing}
	waking := Routes{Lead: both, Reason: ReasonWaking, Next: now.Add(time.Minute)}
	for _, row := range []struct {
		rule     string
		changes  []func(*cnpgv1.Cluster)
		services []Service
		dozed    bool
		want     Routes
	}{
		{"an acknowledged doze is held for when no Service leads past the gateway", with(acknowledged(live)), none, false, held},
		{"not while one does", with(acknowledged(live)), []Service{{UID: "rw", Led: true}, direct[1]}, false, announced},
		{"nor while one does in one family of two", with(acknowledged(live)), []Service{{UID: "rw", Led: true}, {UID: "r", Led: true, Direct: true}}, false, announced},
		{"nor while one leads nowhere", with(acknowledged(live)), []Service{{UID: "rw", Led: true}, {UID: "r"}}, false, announced},
		{"nor before the acknowledgement", with(annotate(contract.AnnotationAnnounced, live)), none, false,
			Routes{Lead: both, Reason: ReasonAnnounced, Next: now.Add(20 * time.Second), Acknowledge: live}},
		{"nor for another sleep than a doze", with(acknowledged(announcement(20 * time.Second))), none, false, announced},
		{"what is held for is not held for again", with(acknowledged(live), annotate(contract.AnnotationGatewayHolding, live)), none, false, announced},
		{"a doze whose deadline has passed keeps the Services until they are ready", with(acknowledged(past)), none, false, waking},
		{"one that is taken back does, too", nil, none, false, waking},
		{"also where the feature is turned off meanwhile", with(dozes, acknowledged(live), annotate(contract.AnnotationEnabled, "false")), none, false, waking},
		{"and the annotation of the doze is removed", with(acknowledged(live), annotate(contract.AnnotationEnabled, "false")), none, false, waking},
		{"they go when they are ready", with(dozes, acknowledged(live), annotate(contract.AnnotationEnabled, "false")), direct, false, Routes{Reason: ReasonDisabled}},

		{"a dozing cluster's Services lead here", with(dozing), none, true, asleep},
		{"also while its PostgreSQL stops, however long that takes", with(fenced(contract.FieldManager)), direct, true, asleep},
		{"and when the fence was lifted before it has", with(fenced(contract.FieldManager), unfenced), direct, true, asleep},
		{"not when it was lifted afterwards", with(dozing, unfenced), direct, false, Routes{Reason: ReasonAwake}},
		{"whatever the annotations say", with(dozing, annotate(contract.AnnotationEnabled, "false"), annotate(contract.AnnotationWake, "manual"), annotate(contract.AnnotationActivity, "x")), none, true, asleep},
		{"and where the plugin is off", with(dozing, func(c *cnpgv1.Cluster) { c.Spec.Plugins[0].Enabled = ptr.To(false) }), none, true, asleep},
		{"and during maintenance", with(dozing, maintained(ptr.To(false))), none, true, asleep},
		{"not one that is being deleted", with(dozing, func(c *cnpgv1.Cluster) { c.DeletionTimestamp = &metav1.Time{Time: now} }), none, true, Routes{Reason: ReasonGone}},
		{"a cluster that a person has fenced has nothing of ours", with(fenced("kubectl-cnpg")), direct, false, Routes{Reason: ReasonAwake}},
		{"a dozing cluster that hibernates is asleep", with(dozing, switchedOn), none, true, Routes{Lead: both, Reason: ReasonAsleep}},
		{"one that a person hibernates is theirs", with(dozing, annotate(contract.AnnotationHibernation, "on")), none, true, Routes{Reason: ReasonByHand}},

		{"after a doze the Services lead here until they are ready", nil, none, true, waking},
		{"and until they have been for long enough", nil, since(0, 0), true, Routes{Lead: both, Reason: ReasonSettling, Next: now.Add(16 * time.Second)}},
		{"each for itself", nil, since(16*time.Second, 10*time.Second), true, Routes{Lead: []types.UID{"r"}, Reason: ReasonSettling, Next: now.Add(6 * time.Second)}},
		{"none for longer", nil, since(time.Minute, 16*time.Second), true, Routes{Reason: ReasonAwake}},
		{"a break keeps them", nil, []Service{none[0], since(0, 10*time.Second)[1]}, true, Routes{Lead: both, Reason: ReasonSettling, Next: now.Add(6 * time.Second)}},
		{"also where the feature is off by now", with(annotate(contract.AnnotationEnabled, "false")), since(0, 0), true, Routes{Lead: both, Reason: ReasonSettling, Next: now.Add(16 * time.Second)}},
		{"a woken cluster that did not doze gives them back at once", nil, since(0, 0), false, Routes{Reason: ReasonAwake}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			state := routing{Cluster: View(made(row.changes...), now), Services: row.services, Dozed: row.dozed, WakingUntil: now.Add(time.Minute)}
			if diff := cmp.Diff(row.want, state.routes(now)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestView_holding(t *testing.T) {
	t.Parallel()
	doze, sleep := announcement(20*time.Second)+" doze", announcement(20*time.Second)
	for _, row := range []struct {
		rule, announced, holding string
		want                     bool
	}{
		{"the confirmation of a doze holds", doze, doze, true},
		{"also after its deadline, for the fence may be on its way", announcement(-time.Minute) + " doze", announcement(-time.Minute) + " doze", true},
		{"one of another announcement does not", doze, announcement(10*time.Second) + " doze", false},
		{"nor one of a sleep", sleep, sleep, false},
		{"nor one of nothing", "", "", false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			view := View(made(annotate(contract.AnnotationAnnounced, row.announced), annotate(contract.AnnotationGatewayHolding, row.holding)), now)
			if view.Holding != row.want || view.HoldsAll() != row.want {
				t.Errorf("holding: %t, nobody is passed on: %t", view.Holding, view.HoldsAll())
			}
		})
	}
}

// Whatever the annotations say, the gateway confirms an announcement only where it leads the clients, and none that has ended.
func FuzzRoutes(f *testing.F) {
	live := announcement(20 * time.Second)
	f.Add(live, "", "", "", "", uint8(0))
	f.Add(live+" doze", live+" doze", live+" doze", "", "", uint8(0b101))
	f.Add(live+" doze", "", "", "on", now.Format(time.RFC3339), uint8(0b1111))
	f.Fuzz(func(t *testing.T, announced, acknowledged, holding, hibernation, since string, bits uint8) {
		cluster := made(annotate(contract.AnnotationAnnounced, announced), annotate(contract.AnnotationGatewayReady, acknowledged),
			annotate(contract.AnnotationGatewayHolding, holding), annotate(contract.AnnotationHibernation, hibernation), annotate(contract.AnnotationDozingSince, since))
		if bits&8 != 0 {
			fenced(contract.FieldManager)(cluster)
		}
		state := routing{
			Cluster: View(cluster, now), Unroutable: bits&4 != 0, WakingUntil: now.Add(time.Minute), Dozed: bits&16 != 0,
			Services: []Service{{UID: "rw", Led: bits&1 != 0, Ready: bits&2 != 0, Direct: bits&2 != 0}},
		}
		plan := state.routes(now)
		confirms := plan.Acknowledge != "" || plan.Hold != ""
		if confirms && (state.Unroutable || len(plan.Lead) != len(state.Services) || cluster.Annotations[contract.AnnotationHibernation] == "on") {
			t.Errorf("%+v is confirmed: %+v", state, plan)
		}
		read, err := contract.ParseAnnouncement(announced)
		if valid, _ := read.Valid(now); confirms && (err != nil || !valid || plan.Hold != "" && !read.Doze) {
			t.Errorf("%q is confirmed: %+v", announced, plan)
		}
	})
}
