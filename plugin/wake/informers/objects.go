package informers

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"reflect"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// kind is a kind of objects that only a running instance of their cluster applies and deletes.
type kind struct {
	object client.Object
	list   client.ObjectList
	keep   toolscache.TransformFunc
}

var kinds = []kind{
	{&cnpgv1.Database{}, &cnpgv1.DatabaseList{}, without(func(o *cnpgv1.Database) {
		pending(&o.ObjectMeta)
		o.Spec = cnpgv1.DatabaseSpec{ClusterRef: o.Spec.ClusterRef}
		o.Status = cnpgv1.DatabaseStatus{ObservedGeneration: o.Status.ObservedGeneration}
	})},
	{&cnpgv1.DatabaseRole{}, &cnpgv1.DatabaseRoleList{}, without(func(o *cnpgv1.DatabaseRole) {
		pending(&o.ObjectMeta)
		o.Spec = cnpgv1.DatabaseRoleSpec{ClusterRef: o.Spec.ClusterRef}
		o.Status = cnpgv1.DatabaseRoleStatus{ObservedGeneration: o.Status.ObservedGeneration}
	})},
	{&cnpgv1.Publication{}, &cnpgv1.PublicationList{}, without(func(o *cnpgv1.Publication) {
		pending(&o.ObjectMeta)
		o.Spec = cnpgv1.PublicationSpec{ClusterRef: o.Spec.ClusterRef}
		o.Status = cnpgv1.PublicationStatus{ObservedGeneration: o.Status.ObservedGeneration}
	})},
	{&cnpgv1.Subscription{}, &cnpgv1.SubscriptionList{}, without(func(o *cnpgv1.Subscription) {
		pending(&o.ObjectMeta)
		o.Spec = cnpgv1.SubscriptionSpec{ClusterRef: o.Spec.ClusterRef}
		o.Status = cnpgv1.SubscriptionStatus{ObservedGeneration: o.Status.ObservedGeneration}
	})},
	poolers,
}

// poolers are no such objects, and watched like them.
var poolers = kind{&cnpgv1.Pooler{}, &cnpgv1.PoolerList{}, without(ofPoolers)}

// ofOneCluster is an object of these kinds.
type ofOneCluster interface {
	GetClusterRef() corev1.LocalObjectReference
}

// reference is the name of the cluster that an object names in its specification; empty: it names none.
func reference(o client.Object) string {
	switch object := o.(type) {
	case *cnpgv1.ScheduledBackup:
		return object.Spec.Cluster.Name
	case *cnpgv1.Pooler:
		return object.Spec.Cluster.Name
	case ofOneCluster:
		return object.GetClusterRef().Name
	default:
		return ""
	}
}

// knownTo are the kinds that the API server has: an older operator has fewer, and an informer of another kind would
// never be in sync.
func knownTo(api client.Client, logger *slog.Logger) ([]kind, error) {
	var known []kind
	for _, kind := range kinds {
		name, err := api.GroupVersionKindFor(kind.object)
		if err != nil {
			return nil, fmt.Errorf("tell what kind %T is: %w", kind.object, err)
		}
		switch _, err := api.RESTMapper().RESTMapping(name.GroupKind(), name.Version); {
		case apimeta.IsNoMatchError(err):
			logger.Info("the API server does not have a kind whose objects could wake clusters; restart the plugin once it has",
				"kind", name.Kind)
		case err != nil:
			return nil, fmt.Errorf("find the resource of kind %s: %w", name.Kind, err)
		default:
			known = append(known, kind)
		}
	}
	return known, nil
}

// Kinds are the kinds of [Reader.Objects] and [Reader.Poolers].
func (r Reader) Kinds() []client.Object {
	var objects []client.Object
	for _, kind := range r.kinds {
		objects = append(objects, kind.object)
	}
	return objects
}

// Objects are what only a running instance of the cluster applies and deletes.
func (r Reader) Objects(ctx context.Context, cluster types.NamespacedName) ([]metav1.Object, error) {
	var objects []metav1.Object
	for _, kind := range r.kinds {
		if kind.object == poolers.object {
			continue
		}
		into, _ := kind.list.DeepCopyObject().(client.ObjectList)
		found, err := list(ctx, r, into, of(cluster)...)
		if err != nil {
			return nil, err
		}
		_ = apimeta.EachListItem(found, func(o runtime.Object) error { // every list has items
			if object, ok := o.(metav1.Object); ok {
				objects = append(objects, object)
			}
			return nil
		})
	}
	return objects, nil
}

// specSet stands for the fields that are set of a specification.
var specSet = metav1.NewFieldsV1(`{` + plan.SpecField + `:{}}`)

// pending keeps of an object's metadata whether it is to be deleted, and when its specification has changed.
func pending(o *metav1.ObjectMeta) {
	var kept []metav1.ManagedFieldsEntry
	for _, entry := range o.ManagedFields {
		if bytes.Contains(entry.FieldsV1.GetRawBytes(), []byte(plan.SpecField)) {
			kept = append(kept, metav1.ManagedFieldsEntry{Time: entry.Time, FieldsV1: specSet})
		}
	}
	o.ManagedFields, o.Labels, o.Annotations, o.OwnerReferences = kept, nil, nil, nil
}

// Transform drops what the plugin does not read of the kinds that the API server may not have: the options of a cache
// must name none of those.
func Transform(object any) (any, error) {
	for _, kind := range kinds {
		if reflect.TypeOf(object) == reflect.TypeOf(kind.object) {
			return kind.keep(object)
		}
	}
	return object, nil
}

// ofPoolers keeps of a Pooler how many instances it has and who has set that, which pods it has, and whom it serves.
func ofPoolers(o *cnpgv1.Pooler) {
	o.ManagedFields = entriesWith(o.ManagedFields, []byte(`"f:instances"`))
	mark, marked := o.Annotations[contract.AnnotationInstances]
	o.Labels, o.Annotations, o.OwnerReferences, o.Status = nil, nil, nil, cnpgv1.PoolerStatus{}
	if marked {
		o.Annotations = map[string]string{contract.AnnotationInstances: mark}
	}
	kept := cnpgv1.PoolerSpec{Cluster: o.Spec.Cluster, Type: o.Spec.Type, Instances: o.Spec.Instances}
	if o.Spec.Template != nil {
		kept.Template = &cnpgv1.PodTemplateSpec{ObjectMeta: cnpgv1.Metadata{Labels: o.Spec.Template.ObjectMeta.Labels}}
	}
	if o.Spec.PgBouncer != nil {
		kept.PgBouncer = &cnpgv1.PgBouncerSpec{PgHBA: o.Spec.PgBouncer.PgHBA}
	}
	o.Spec = kept
}
