package audit

import (
	"encoding/json"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations, and the condition that has the name of one.
const (
	hibernation   = "cnpg.io/hibernation"
	fence         = "cnpg.io/fencedInstances"
	announced     = "xata.io/scale-to-zero-announced"
	gatewayReady  = "xata.io/scale-to-zero-gateway-ready"
	holding       = "xata.io/scale-to-zero-gateway-holding"
	dozingSince   = "xata.io/scale-to-zero-dozing-since"
	stopped       = "xata.io/scale-to-zero-postgres-stopped"
	wakeBy        = "xata.io/scale-to-zero-wake"
	suspendedMark = "xata.io/scale-to-zero-suspended"
)

// object is a Cluster or a ScheduledBackup, as far as a trace needs it.
type object struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Suspend bool `json:"suspend"`
		Cluster struct {
			Name string `json:"name"`
		} `json:"cluster"`
	} `json:"spec"`
	Status struct {
		CurrentPrimary string             `json:"currentPrimary"`
		Conditions     []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// ours reports whether our field manager alone set the field at a path, as sidecar/contract reads it.
func (o *object) ours(path ...string) bool {
	ours := false
	for i := range o.Metadata.ManagedFields {
		switch entry := &o.Metadata.ManagedFields[i]; {
		case !owns(entry.FieldsV1.GetRawBytes(), path):
		case entry.Manager == sidecarAgent:
			ours = true
		case entry.Operation == metav1.ManagedFieldsOperationApply:
			return false
		}
	}
	return ours
}

func owns(fields []byte, path []string) bool {
	for _, name := range path {
		var children map[string]json.RawMessage
		if json.Unmarshal(fields, &children) != nil {
			return false
		}
		child, ok := children["f:"+name]
		if !ok {
			return false
		}
		fields = child
	}
	return true
}

// state is what a trace needs to know of a Cluster.
type state struct {
	announced, acknowledged string
	on, ours, manual        bool
	// begun says that the operator has begun to delete pods, gone that it has deleted all.
	begun, gone bool
	primary     string
	// fenced says that there is a fence, theirs that it is not ours. The others are of a doze.
	fenced, theirs          bool
	holding, since, stopped string
}

// dozeAnnounced reports whether a doze is announced, as sidecar/contract writes it.
func (s *state) dozeAnnounced() bool { return strings.HasSuffix(s.announced, " doze") }

func (o *object) state() state {
	annotations := o.Metadata.Annotations
	s := state{
		announced: annotations[announced], acknowledged: annotations[gatewayReady], on: annotations[hibernation] == "on",
		manual: annotations[wakeBy] == "manual", primary: o.Status.CurrentPrimary,
	}
	s.fenced, s.holding, s.since, s.stopped = annotations[fence] != "", annotations[holding], annotations[dozingSince], annotations[stopped]
	s.theirs = s.fenced && !o.ours("metadata", "annotations", fence)
	s.ours = s.on && o.ours("metadata", "annotations", hibernation)
	if condition := meta.FindStatusCondition(o.Status.Conditions, hibernation); condition != nil {
		s.begun = condition.Reason != "" && condition.Reason != "WaitingForHealthy"
		s.gone = condition.Reason == "Hibernated" && condition.Status == metav1.ConditionTrue
	}
	return s
}

// schedule is what a trace needs to know of a ScheduledBackup.
type schedule struct {
	suspended, marked, ours bool
	mark                    string // no two attempts write the same
}

func (o *object) schedule() schedule {
	mark, marked := o.Metadata.Annotations[suspendedMark]
	return schedule{suspended: o.Spec.Suspend, marked: marked, mark: mark, ours: o.ours("spec", "suspend")}
}

// suspendable reports whether a sidecar that suspends the schedules writes this one.
func (s schedule) suspendable() bool { return !s.suspended || s.marked }
