// Package informerstest finds objects of a test's fake API server as the informers do.
package informerstest

import (
	"context"
	"fmt"
	"reflect"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/informers"
)

// Index makes the fake API server keep the indices that pods are asked by.
func Index(builder *fake.ClientBuilder) *fake.ClientBuilder {
	for name, function := range informers.PodIndices() {
		builder = builder.WithIndex(&corev1.Pod{}, name, function)
	}
	return builder
}

// Reader finds what is there at the moment.
func Reader(api client.Reader) informers.Reader {
	return informers.NewReader(api, informers.Stores{
		Clusters: store(api, &cnpgv1.Cluster{}, func() client.ObjectList { return &cnpgv1.ClusterList{} }, nil),
		Services: store(api, &corev1.Service{}, func() client.ObjectList { return &corev1.ServiceList{} }, informers.ServiceIndexers()),
		Slices:   store(api, &discoveryv1.EndpointSlice{}, func() client.ObjectList { return &discoveryv1.EndpointSliceList{} }, informers.SliceIndexers()),
	})
}

// Kept is what the informers keep of the object, and tell of.
func Kept(object client.Object) (client.Object, error) {
	part, err := transformation(object)(object)
	if err != nil {
		return nil, fmt.Errorf("keep a part of %T: %w", object, err)
	}
	return part.(client.Object), nil
}

// transformation makes of an object of that kind what the informers keep of it.
func transformation(kind client.Object) toolscache.TransformFunc {
	for watched, options := range informers.ByObject("") {
		if reflect.TypeOf(watched) == reflect.TypeOf(kind) {
			return options.Transform
		}
	}
	return nil
}

// store keeps what the API server has of that kind.
func store(api client.Reader, kind client.Object, empty func() client.ObjectList, indexers toolscache.Indexers) informers.Store {
	transform := transformation(kind)
	return func(ctx context.Context) (toolscache.Indexer, error) {
		list := empty()
		if err := api.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
		kept := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, indexers)
		err := meta.EachListItem(list, func(object runtime.Object) error {
			part, err := transform(object)
			if err != nil {
				return err
			}
			return kept.Add(part)
		})
		if err != nil {
			return nil, fmt.Errorf("index %T: %w", list, err)
		}
		return kept, nil
	}
}
