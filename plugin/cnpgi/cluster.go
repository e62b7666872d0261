package cnpgi

import (
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// cluster holds the fields that the hook reads of a request's Cluster, which may be large because of its status and
// managedFields.
type cluster struct {
	Metadata struct {
		Namespace   string            `json:"namespace"`
		Name        string            `json:"name"`
		UID         types.UID         `json:"uid"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Instances int `json:"instances"`
		Probes    struct {
			Startup *struct{} `json:"startup"`
		} `json:"probes"`
	} `json:"spec"`

	unreadable bool
}

// readCluster parses a definition; if that fails, the result is marked as unreadable.
func readCluster(definition []byte) cluster {
	var c cluster
	if json.Unmarshal(definition, &c) != nil {
		return cluster{unreadable: true}
	}
	return c
}

// identity returns the metadata that an Event needs.
func (c *cluster) identity() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: c.Metadata.Namespace, Name: c.Metadata.Name, UID: c.Metadata.UID}
}

// updatesImmediately reports whether the operator may replace the running instances to update their sidecar, by the
// Cluster's annotation or, without one, by the plugin's setting. A Cluster that cannot be read or an unknown value
// causes no rollout.
func (c *cluster) updatesImmediately(otherwise bool) bool {
	if c.unreadable {
		return false
	}
	value, ok := contract.Effective(c.Metadata.Annotations)[contract.AnnotationSidecarUpdate]
	if !ok {
		return otherwise
	}
	return value == contract.UpdateImmediate
}

// ownStartupProbe reports whether the user configured the instances' startup probe. It returns true for a definition
// that cannot be read.
func (c *cluster) ownStartupProbe() bool { return c.unreadable || c.Spec.Probes.Startup != nil }

// mayDoze reports whether the cluster may doze: it has one instance, and its annotations are valid and say so.
func (c *cluster) mayDoze(now time.Time) bool {
	policy, _ := idle.ParsePolicy(c.Metadata.Annotations, now)
	return policy.Watches() && policy.Doze != 0 && c.Spec.Instances == 1
}
