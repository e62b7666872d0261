package plan

import (
	"encoding/json"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/rights"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

const (
	// FieldManager writes the switch for this project: as who the sidecars and the plugin patch a Cluster.
	FieldManager = "cnpg-i-scale-to-zero"
	// reasonHibernated is how the operator's condition says that every pod is gone (1.30: pkg/reconciler/hibernation).
	reasonHibernated = "Hibernated"
	on               = "on"
)

// Cluster is what a decision needs to know of a Cluster.
type Cluster struct {
	// Listed says that the Cluster lists the plugin; Gone that it is being deleted.
	Listed, Gone bool
	// Policy is what the annotations ask for, Problems how many of them are not understood.
	Policy   idle.Policy
	Problems int
	// UnderstoodFrom is when they all will be, as nobody changes them; zero: never.
	UnderstoodFrom time.Time
	// Switched says that the hibernation switch is on, Ours that it was this project that turned it on, Hibernated that
	// the operator has deleted every pod.
	Switched, Ours, Hibernated bool
	// Announced and Acknowledged are the annotations' values.
	Announced, Acknowledged string
}

// View reads a Cluster. now limits how far ahead a time in an annotation may be.
func View(cluster *cnpgv1.Cluster, now time.Time) Cluster {
	policy, problems := idle.ParsePolicy(cluster.Annotations, now)
	view := Cluster{
		Listed: rights.Lists(cluster), Gone: !cluster.DeletionTimestamp.IsZero(), Policy: policy, Problems: len(problems),
		UnderstoodFrom: idle.UnderstoodFrom(problems),
		Switched:       cluster.Annotations[idle.KeyHibernation] == on,
		Announced:      cluster.Annotations[idle.KeyAnnounced], Acknowledged: cluster.Annotations[idle.KeyGatewayReady],
	}
	view.Ours = view.Switched && Owned(cluster.ManagedFields)
	for _, condition := range cluster.Status.Conditions {
		if condition.Type == idle.KeyHibernation { // the operator names the condition like the annotation
			view.Hibernated = condition.Status == metav1.ConditionTrue && condition.Reason == reasonHibernated
		}
	}
	return view
}

// Owned tells whether the switch, as it is, was set by this project alone. The value stays ours when a person sets the same
// again, which Kubernetes does not record, and becomes theirs when they turn it off and on, or when they apply the same on the
// server's side: whoever does that declares that it is to be so.
func Owned(fields []metav1.ManagedFieldsEntry) bool {
	ours := false
	for i := range fields {
		switch {
		case !ownsSwitch(&fields[i]):
		case fields[i].Manager == FieldManager:
			ours = true
		case fields[i].Operation == metav1.ManagedFieldsOperationApply:
			return false
		}
	}
	return ours
}

func ownsSwitch(entry *metav1.ManagedFieldsEntry) bool {
	if entry.FieldsV1 == nil {
		return false
	}
	var owned struct {
		Metadata struct {
			Annotations map[string]json.RawMessage `json:"f:annotations"`
		} `json:"f:metadata"`
	}
	if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &owned) != nil {
		return false
	}
	_, is := owned.Metadata.Annotations["f:"+idle.KeyHibernation]
	return is
}

// Obstacle says why connections do not wake the cluster while it sleeps; empty: they do.
func (c Cluster) Obstacle() Reason {
	switch {
	case c.Gone:
		return ReasonGone
	case !c.Listed:
		return ReasonNotListed
	case c.Problems != 0:
		return ReasonInvalid
	case !c.Policy.Enabled:
		return ReasonDisabled
	case c.Policy.Manual:
		return ReasonManual
	case c.Switched && !c.Ours:
		return ReasonByHand
	default:
		return ""
	}
}
