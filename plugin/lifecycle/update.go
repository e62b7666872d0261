package lifecycle

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// RollsFor tells whether the operator is to replace the running instances of a cluster for another sidecar: as the Cluster's
// annotation says, and as the plugin is set where there is none. Whatever cannot be read, or is not understood, rolls nothing.
func RollsFor(definition []byte, otherwise bool) bool {
	var cluster metav1.PartialObjectMetadata
	if json.Unmarshal(definition, &cluster) != nil {
		return false
	}
	value, set := cluster.Annotations[idle.KeySidecarUpdate]
	if !set {
		return otherwise
	}
	return value == idle.UpdateImmediate
}
