package informers

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ReadLive are the kinds that a client of the manager has to ask the API server for. So little is kept of them, of some kinds as
// types of this package's own, that only a [Reader] knows what to make of it. Without a gateway none is kept, and a client that
// asked the informers would have them keep all there are.
func ReadLive() []client.Object {
	return []client.Object{&corev1.Service{}, &discoveryv1.EndpointSlice{}, &corev1.Pod{}, &corev1.Node{}, &networkingv1.NetworkPolicy{}}
}

// NewCache makes the manager's cache.
func NewCache(config *rest.Config, options cache.Options) (cache.Cache, error) {
	options.Mapper = remember(options.Mapper)
	made, err := cache.New(config, options)
	if err != nil {
		return nil, fmt.Errorf("make the cache: %w", err)
	}
	return guarded{made}, nil
}

// remembering is a mapper that finds what a kind is once. The framework asks for it at every list of pods, those of one namespace
// being watched apart from the others', and the answer took a tenth of the processor's time while the gateway was attacked.
type remembering struct {
	apimeta.RESTMapper
	mutex sync.Mutex
	known map[schema.GroupVersionKind]*apimeta.RESTMapping
}

func remember(mapper apimeta.RESTMapper) *remembering {
	return &remembering{RESTMapper: mapper, known: map[schema.GroupVersionKind]*apimeta.RESTMapping{}}
}

// RESTMapping finds a kind's resource and scope, which never change.
func (m *remembering) RESTMapping(kind schema.GroupKind, versions ...string) (*apimeta.RESTMapping, error) {
	if len(versions) != 1 {
		return m.RESTMapper.RESTMapping(kind, versions...) // it stands for the mapper
	}
	key := kind.WithVersion(versions[0])
	m.mutex.Lock()
	known, ok := m.known[key]
	m.mutex.Unlock()
	if ok {
		return known, nil
	}
	found, err := m.RESTMapper.RESTMapping(kind, versions...)
	if err == nil {
		m.mutex.Lock()
		m.known[key] = found
		m.mutex.Unlock()
	}
	return found, err // it stands for the mapper
}

// guarded is a cache that hands out nothing of the kinds that it keeps as types of this package's own. The framework's would fail
// for some requests, and for a list by a label find nothing, whatever there is.
type guarded struct{ cache.Cache }

// Get reads an object of another kind.
func (g guarded) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	switch into.(type) {
	case *corev1.Service, *discoveryv1.EndpointSlice:
		return notKept(into)
	}
	return g.Cache.Get(ctx, key, into, options...) // it stands for the cache
}

// List reads objects of another kind.
func (g guarded) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	switch into.(type) {
	case *corev1.ServiceList, *discoveryv1.EndpointSliceList:
		return notKept(into)
	}
	return g.Cache.List(ctx, into, options...) // it stands for the cache
}

func notKept(into any) error {
	return fmt.Errorf("read %T from the informers: they keep a part of it, which a Reader finds", into)
}
