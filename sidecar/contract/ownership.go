package contract

import (
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SetByUs reports whether the current value of the field at a path was set by this project alone. It stays ours if a
// person sets the same value again, which Kubernetes does not record. It becomes theirs if they change the value and
// change it back, or if they set the same value by server-side apply, which declares it as intended.
func SetByUs(entries []metav1.ManagedFieldsEntry, path ...string) bool {
	ours := false
	for i := range entries {
		switch entry := &entries[i]; {
		case !owns(entry.FieldsV1.GetRawBytes(), path):
		case entry.Manager == FieldManager:
			ours = true
		case entry.Operation == metav1.ManagedFieldsOperationApply:
			return false
		}
	}
	return ours
}

// Updater returns the entry of the field manager that alone has set the field at a path, but not by server-side apply,
// which declares the value as intended; zero if there is none.
func Updater(entries []metav1.ManagedFieldsEntry, path ...string) (updater metav1.ManagedFieldsEntry) {
	for i := range entries {
		entry := &entries[i]
		if !owns(entry.FieldsV1.GetRawBytes(), path) {
			continue
		}
		if updater.Manager != "" || entry.Operation == metav1.ManagedFieldsOperationApply {
			return metav1.ManagedFieldsEntry{}
		}
		updater = *entry
	}
	return updater
}

// SetByOthers reports whether the field at a path was set by a manager that is neither ours nor the object's creator,
// which is the manager that owns the field at made.
func SetByOthers(entries []metav1.ManagedFieldsEntry, made []string, path ...string) bool {
	for i := range entries {
		entry := &entries[i]
		fields := entry.FieldsV1.GetRawBytes()
		if entry.Manager != FieldManager && owns(fields, path) && !owns(fields, made) {
			return true
		}
	}
	return false
}

// ListItem is the part of a path that leads to the item of that name in a list.
func ListItem(name string) string { return `k:{"name":"` + name + `"}` }

// Dozes reports whether a Cluster with these annotations and managed fields is fenced by us: it dozes, unless it
// hibernates.
func Dozes(annotations map[string]string, entries []metav1.ManagedFieldsEntry) bool {
	return annotations[AnnotationFencedInstances] == FencedInstancesAll &&
		SetByUs(entries, "metadata", "annotations", AnnotationFencedInstances) && !FenceApplied(annotations)
}

// lastApplied is the annotation in which `kubectl apply` keeps the manifest. It sends only what differs from the
// object, so a value that we have set already does not become its own in the managed fields.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// FenceApplied reports whether a person has applied a manifest that contains the fence that we would set.
func FenceApplied(annotations map[string]string) bool {
	text := annotations[lastApplied]
	if !strings.Contains(text, AnnotationFencedInstances) { // as almost always
		return false
	}
	var manifest struct {
		Metadata struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
	}
	return json.Unmarshal([]byte(text), &manifest) == nil &&
		manifest.Metadata.Annotations[AnnotationFencedInstances] == FencedInstancesAll
}

// owns reports whether a set of fields contains the one at a path. A malformed set contains none.
func owns(fields []byte, path []string) bool {
	for _, name := range path {
		var children map[string]json.RawMessage
		if json.Unmarshal(fields, &children) != nil {
			return false
		}
		if !strings.HasPrefix(name, "k:") {
			name = "f:" + name
		}
		child, ok := children[name]
		if !ok {
			return false
		}
		fields = child
	}
	return true
}
