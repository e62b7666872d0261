package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// summary is a plan in a line: what is written, deleted and told, what is asked for, and in how long there is to be another plan.
func (p Plan) summary() string {
	var parts []string
	for _, change := range p.Changes {
		for _, key := range slices.Sorted(maps.Keys(change.Annotations)) {
			part := "-" + key
			if value := change.Annotations[key]; value != nil {
				part = key + "=" + *value
			}
			parts = append(parts, part)
		}
		for when, event := range map[string]*Event{"first": change.First, "then": change.Then} {
			if event != nil {
				parts = append(parts, when+" "+event.Reason)
			}
		}
	}
	for _, pod := range p.Delete {
		parts = append(parts, "delete "+pod.Name)
	}
	for _, event := range p.Events {
		parts = append(parts, event.Reason)
	}
	for what, asked := range map[string]bool{"list": p.List, "dial": p.Dial, "confirm": p.Confirm != ""} {
		if asked {
			parts = append(parts, what)
		}
	}
	slices.Sort(parts)
	if !p.Next.IsZero() {
		parts = append(parts, fmt.Sprintf("in %s", p.Next.Sub(now)))
	}
	return strings.ReplaceAll(strings.Join(parts, "; "), "xata.io/scale-to-zero-", "")
}

// inHibernation is the operator's condition of a cluster.
func inHibernation(reason string, status metav1.ConditionStatus) func(*cnpgv1.Cluster) {
	return func(c *cnpgv1.Cluster) {
		c.Status.Conditions = []metav1.Condition{{Type: contract.ConditionHibernation, Reason: reason, Status: status}}
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	type changes = []func(*cnpgv1.Cluster)
	instance := []Pod{{UID: "pod-uid", Name: "orders-1"}}
	found := func(i Instance) *[]Instance { i.UID, i.Name = "pod-uid", "orders-1"; return &[]Instance{i} }
	stopping := fenced(contract.FieldManager)
	ago := func(d time.Duration) string { return now.Add(-d).Format(time.RFC3339) }
	hibernating := changes{stopping, switchedOn, inHibernation(contract.HibernationDeletingPods, metav1.ConditionFalse)}
	failed := annotate(contract.AnnotationRestartFailed, "pod-uid")
	wake, err := contract.LastWake{At: now.Add(-time.Minute), By: "192.0.2.9", Service: "rw"}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	clocked, err := contract.LastWake{At: now.Add(-time.Minute), Cause: contract.CauseWindow, By: "keep-awake window of noon"}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		rule    string
		changes changes
		state   State
		want    string
	}{
		{"an awake cluster needs nothing", nil, State{}, ""},
		{"a Cluster that is gone needs nothing", nil, State{Gone: true}, ""},
		{"a stop that the sidecar has not recorded is awaited", changes{stopping}, State{}, "list; in 30s"},
		{"then the instances are inspected", changes{stopping}, State{Memory: Memory{stop: Stop{began: now.Add(-sidecarTimeout)}}}, "dial; list"},
		{"one that serves has not stopped", changes{stopping}, State{Memory: Memory{stop: Stop{began: now.Add(-sidecarTimeout)}}, Inspected: found(Instance{Ready: true})},
			"StopDelayed; in 5s"},
		{"one refusal proves nothing", changes{stopping}, State{Memory: Memory{stop: Stop{began: now.Add(-sidecarTimeout)}}, Inspected: found(Instance{Refuses: true})},
			"StopDelayed; in 1s"},
		{"a second one proves the stop", changes{stopping},
			State{Memory: Memory{stop: Stop{began: now.Add(-sidecarTimeout), pods: "pod-uid", refused: now.Add(-refusalInterval)}}, Inspected: found(Instance{Refuses: true})},
			"StopDelayed; postgres-stopped=pod-uid; in 5s"},
		{"where there is no pod it has stopped", changes{stopping},
			State{Memory: Memory{stop: Stop{began: now.Add(-sidecarTimeout), refused: now.Add(-refusalInterval)}}, Inspected: &[]Instance{}},
			"StopDelayed; postgres-stopped=none; in 5s"},
		{"a fence that stops nothing is lifted", changes{stopping},
			State{Memory: Memory{stop: Stop{began: now.Add(-time.Hour), serving: now.Add(-fenceTimeout)}}, Inspected: found(Instance{Ready: true})},
			"-cnpg.io/fencedInstances; StopDelayed; in 5s"},
		{"one that a person has lifted stops nothing in the end", changes{stopping, unfenced},
			State{Memory: Memory{stop: Stop{began: now.Add(-LiftedFenceTimeout), fenceLifted: true}}, Inspected: found(Instance{Ready: true})},
			"-dozing-since; in 5s"},
		{"a fenced instance of a cluster that hibernates is deleted", hibernating, State{Instances: instance}, "delete orders-1"},
		{"not where its volume is at risk", append(slices.Clone(hibernating), maintained(new(bool))), State{Instances: instance}, "WakeRefused"},
		{"the fence is lifted once it is gone", changes{dozing, switchedOn, inHibernation(contract.Hibernated, metav1.ConditionTrue)}, State{},
			"-cnpg.io/fencedInstances; -dozing-since; -postgres-stopped"},
		{"also where the Cluster no longer lists the plugin", changes{dozing, func(c *cnpgv1.Cluster) { c.Spec.Plugins = nil }}, State{},
			"-cnpg.io/fencedInstances; -dozing-since; -postgres-stopped"},
		{"and while the operator waits for it to get healthy", changes{stopping, annotate(contract.AnnotationHibernation, "on"), inHibernation(contract.HibernationWaitingForHealthy, metav1.ConditionFalse)}, State{},
			"-cnpg.io/fencedInstances; -postgres-stopped"},
		{"a pod in which PostgreSQL was not started is inspected", changes{failed}, State{Instances: instance, Primary: "orders-1"}, "dial"},
		{"and deleted", changes{failed}, State{Instances: instance, Primary: "orders-1", Inspected: found(Instance{Refuses: true})}, "delete orders-1"},
		{"not if it listens", changes{failed}, State{Instances: instance, Primary: "orders-1", Inspected: found(Instance{})}, "in 5s"},
		{"not if it is no primary", changes{failed}, State{Instances: instance, Primary: "orders-2"}, ""},
		{"a dozing cluster that is disrupted hibernates", changes{dozing}, State{Disrupted: "so that its pod leaves"},
			"then HibernationRequested; sleep-requested=" + ago(0)},
		{"that is asked for once", changes{dozing, annotate(contract.AnnotationSleepRequested, ago(time.Minute))}, State{Disrupted: "so that its pod leaves"}, "in 4m0s"},
		{"not if its fence is lifted", changes{dozing, func(c *cnpgv1.Cluster) { c.Spec.Plugins = nil }}, State{Disrupted: "so that its pod leaves"},
			"-cnpg.io/fencedInstances; -dozing-since; -postgres-stopped"},
		{"a request from before the doze is none", changes{dozing, annotate(contract.AnnotationSleepRequested, ago(2*time.Hour))}, State{Disrupted: "so that its pod leaves"},
			"then HibernationRequested; sleep-requested=" + ago(0)},
		{"an unroutable Service is told of before it is written", nil, State{Unroutable: []string{"orders-x: why"}}, "first ServiceUnroutable; unroutable-services=orders-x: why"},
		{"once", changes{annotate(contract.AnnotationUnroutableServices, "orders-x: why")}, State{Unroutable: []string{"orders-x: why"}}, ""},
		{"and no more when it can be led", changes{annotate(contract.AnnotationUnroutableServices, "orders-x: why")}, State{}, "-unroutable-services"},
		{"who can no more be woken is told how to wake it", changes{switchedOn, annotate(contract.AnnotationWake, "manual")}, State{LedHere: true}, "WakesByHandOnly"},
		{"by the replica that led its clients", changes{switchedOn, annotate(contract.AnnotationWake, "manual")}, State{}, ""},
		{"what could not be written is told later", changes{switchedOn, annotate(contract.AnnotationWake, "manual")}, State{Memory: Memory{Unwritten: []Event{{Reason: "WakesByHandOnly"}}}}, "WakesByHandOnly"},
		{"as it is by then", changes{switchedOn, annotate(contract.AnnotationWake, "manual")}, State{LedHere: true, Memory: Memory{Unwritten: []Event{{Reason: "WakesByHandOnly"}}}}, "WakesByHandOnly"},
		{"unless it is true no more", nil, State{Memory: Memory{Unwritten: []Event{{Reason: "WakesByHandOnly"}, {Reason: "HibernationRequested"}}}}, "HibernationRequested"},
		{"the waker has five seconds to tell of a wake", changes{annotate(contract.AnnotationLastWake, wake)}, State{Services: []Service{{UID: "rw", Name: "rw", Direct: true}}}, "in 5s"},
		{"then any replica does", changes{annotate(contract.AnnotationLastWake, wake)},
			State{Services: []Service{{UID: "rw", Name: "rw", Direct: true}}, Memory: Memory{serving: now.Add(-WakerEventDelay)}}, "Woken"},
		{"what it was woken for is told of at once", changes{annotate(contract.AnnotationLastWake, clocked)}, State{}, "Woken"},
		{"a stop that takes long is told of", changes{switchedOn, annotate(contract.AnnotationAsleepSince, ago(LongStop))}, State{Inspected: found(Instance{Deleting: true})}, "StopDelayed"},
		{"not before", changes{switchedOn, annotate(contract.AnnotationAsleepSince, ago(0))}, State{}, "in 30s"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			cluster := made(row.changes...)
			row.state.Name, row.state.Resource = types.NamespacedName{Namespace: "shop", Name: "orders"}, "clusters.postgresql.cnpg.io"
			row.state.Cluster, row.state.Annotations = View(cluster, now), cluster.Annotations
			if got := Decide(row.state, now).summary(); got != row.want {
				t.Errorf("%q, want %q", got, row.want)
			}
		})
	}
}
