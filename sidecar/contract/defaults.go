package contract

import (
	"encoding/json"
	"fmt"
	"maps"
)

// EncodeDefaults encodes a Namespace's annotations for [AnnotationDefaults], sorted by key; none is the empty string.
func EncodeDefaults(defaults map[string]string) (string, error) {
	if len(defaults) == 0 {
		return "", nil
	}
	encoded, err := json.Marshal(defaults)
	if err != nil {
		return "", fmt.Errorf("encode the defaults: %w", err)
	}
	return string(encoded), nil
}

// DecodeDefaults returns the Namespace's annotations that were copied to a Cluster; nil if there are none.
func DecodeDefaults(annotations map[string]string) (map[string]string, error) {
	encoded := annotations[AnnotationDefaults]
	if encoded == "" {
		return nil, nil
	}
	var defaults map[string]string
	if err := json.Unmarshal([]byte(encoded), &defaults); err != nil {
		return nil, fmt.Errorf("decode annotation %s: %w", AnnotationDefaults, err)
	}
	return defaults, nil
}

// Effective returns a Cluster's annotations, and those of its Namespace that it does not have itself. What cannot be
// decoded is no default.
func Effective(annotations map[string]string) map[string]string {
	defaults, err := DecodeDefaults(annotations)
	if err != nil || len(defaults) == 0 {
		return annotations
	}
	maps.Copy(defaults, annotations)
	return defaults
}
