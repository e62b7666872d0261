package lifecycle

import (
	"encoding/json"
	"fmt"

	"gomodules.xyz/jsonpatch/v2"
	corev1 "k8s.io/api/core/v1"
)

// changes is the JSON patch that makes one pod of the other. It compares what the operator will read, the JSON: the structs of
// two quantities differ in nothing that Go shows.
func changes(from, to *corev1.Pod) ([]byte, error) {
	before, err := json.Marshal(from)
	if err != nil {
		return nil, fmt.Errorf("encode the pod: %w", err)
	}
	after, err := json.Marshal(to)
	if err != nil {
		return nil, fmt.Errorf("encode the pod with the sidecar: %w", err)
	}
	operations, err := jsonpatch.CreatePatch(before, after)
	if err != nil {
		return nil, fmt.Errorf("compare the pods: %w", err)
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		return nil, fmt.Errorf("encode the patch: %w", err)
	}
	return patch, nil
}
