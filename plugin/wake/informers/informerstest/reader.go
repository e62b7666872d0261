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
	"k8s.io/apimachinery/pkg/types"
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
	return informers.Reader{
		Reader:       api,
		ClusterStore: store{api, func() client.ObjectList { return &cnpgv1.ClusterList{} }, transformation(&cnpgv1.Cluster{}), nil},
		ServiceStore: store{api, func() client.ObjectList { return &corev1.ServiceList{} }, transformation(&corev1.Service{}), informers.ServiceIndexers()},
		SliceStore:   store{api, func() client.ObjectList { return &discoveryv1.EndpointSliceList{} }, transformation(&discoveryv1.EndpointSlice{}), informers.SliceIndexers()},
	}
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

type store struct {
	api       client.Reader
	list      func() client.ObjectList
	transform toolscache.TransformFunc
	indexers  toolscache.Indexers
}

func (s store) ByIndex(ctx context.Context, index, key string) ([]any, error) {
	kept, err := s.kept(ctx)
	if err != nil {
		return nil, err
	}
	return kept.ByIndex(index, key)
}

func (s store) Keys(ctx context.Context, index string) ([]string, error) {
	kept, err := s.kept(ctx)
	if err != nil {
		return nil, err
	}
	return kept.ListIndexFuncValues(index), nil
}

func (s store) ByName(ctx context.Context, name types.NamespacedName) (any, error) {
	kept, err := s.kept(ctx)
	if err != nil {
		return nil, err
	}
	object, _, err := kept.GetByKey(name.String())
	return object, err
}

func (s store) All(ctx context.Context) ([]any, error) {
	kept, err := s.kept(ctx)
	if err != nil {
		return nil, err
	}
	return kept.List(), nil
}

func (s store) kept(ctx context.Context) (toolscache.Indexer, error) {
	list := s.list()
	if err := s.api.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list %T: %w", list, err)
	}
	kept := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, s.indexers)
	err := meta.EachListItem(list, func(object runtime.Object) error {
		part, err := s.transform(object)
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
