package lifecycle

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// cluster is what the hook reads of the Cluster of a request, which may be large: its status and who changed what are in it.
type cluster struct {
	Metadata struct {
		Namespace   string            `json:"namespace"`
		Name        string            `json:"name"`
		UID         types.UID         `json:"uid"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Probes struct {
			Startup *struct{} `json:"startup"`
		} `json:"probes"`
	} `json:"spec"`

	unreadable bool
}

// readCluster reads a definition; one that cannot be read is said to be so.
func readCluster(definition []byte) cluster {
	var c cluster
	if json.Unmarshal(definition, &c) != nil {
		return cluster{unreadable: true}
	}
	return c
}

// identity is what an Event needs to know of it.
func (c *cluster) identity() metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: c.Metadata.Namespace, Name: c.Metadata.Name, UID: c.Metadata.UID}
}

// rolls reports whether the operator is to replace the running instances for another sidecar: as the Cluster's annotation says, and as
// the plugin is set where there is none. Whatever cannot be read, or is not understood, rolls nothing.
func (c *cluster) rolls(otherwise bool) bool {
	if c.unreadable {
		return false
	}
	value, ok := c.Metadata.Annotations[contract.AnnotationSidecarUpdate]
	if !ok {
		return otherwise
	}
	return value == contract.UpdateImmediate
}

// ownStartupProbe reports whether the user configured the startup probe of the instances. A definition that cannot be read is taken
// for one where it is so.
func (c *cluster) ownStartupProbe() bool { return c.unreadable || c.Spec.Probes.Startup != nil }
