package informers

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// metadata is what is kept of an object that says nothing: what an informer needs to tell it from others, and its next change
// from none. It has no labels, so that the indices and every list by a label pass it over. It takes 64 bytes, and an
// EndpointSlice without anything in it 352; a fleet has as many as Services.
type metadata struct {
	*metav1.ObjectMeta
	namespace, name, version string
}

var _ client.Object = (*metadata)(nil)

// nothing is what all of them share; nobody changes what is read from informers.
var nothing = &metav1.ObjectMeta{}

// GetNamespace returns the object's.
func (u *metadata) GetNamespace() string { return u.namespace }

// GetName returns the object's.
func (u *metadata) GetName() string { return u.name }

// GetResourceVersion returns the version that the object had.
func (u *metadata) GetResourceVersion() string { return u.version }

// GetObjectKind returns none.
func (u *metadata) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns a copy.
func (u *metadata) DeepCopyObject() runtime.Object {
	metadata := *u
	return &metadata
}
