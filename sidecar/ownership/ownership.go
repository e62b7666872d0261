// Package ownership is the rule by which sidecar and plugin distinguish their own writes from those of others.
package ownership

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// SetByUs reports whether the field at a path, as it is, was set by this project alone. It stays ours when a person sets the
// same value again, which Kubernetes does not record, and becomes theirs when they set another value and then this one, or
// when they apply the same on the server's side: whoever does that declares that it is to be so.
func SetByUs(entries []metav1.ManagedFieldsEntry, path ...string) bool {
	ours := false
	for i := range entries {
		switch entry := &entries[i]; {
		case !owns(entry.FieldsV1.GetRawBytes(), path):
		case entry.Manager == contract.FieldManager:
			ours = true
		case entry.Operation == metav1.ManagedFieldsOperationApply:
			return false
		}
	}
	return ours
}

// owns reports whether a set of fields holds the one at a path. A set that is not understood holds none.
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
