package informers

import (
	"context"
	"reflect"
	"strings"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// served is a cache that is asked for whatever it is asked for.
type served struct{ cache.Cache }

func (served) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}

func (served) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// foreign are the kinds of which some objects are kept as another type, by what is kept of objects of each kind with much in
// them and with little.
func foreign(t *testing.T) map[reflect.Type]bool {
	t.Helper()
	objects := []client.Object{
		&cnpgv1.Cluster{}, &corev1.Service{}, &corev1.Service{Spec: corev1.ServiceSpec{
			Selector: map[string]string{"a": "b"}, Ports: []corev1.ServicePort{{Port: 5432}},
		}}, &corev1.Pod{}, &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSlice{
			Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](5432)}}, Endpoints: []discoveryv1.Endpoint{{}},
		},
	}
	found := map[reflect.Type]bool{}
	for kind, options := range ByObject("system") {
		if options.Transform == nil {
			continue
		}
		for _, object := range append(objects, kind) {
			if reflect.TypeOf(object) != reflect.TypeOf(kind) {
				continue
			}
			kept, err := options.Transform(object.DeepCopyObject())
			if err != nil {
				t.Fatal(err)
			}
			if reflect.TypeOf(kept) != reflect.TypeOf(kind) {
				found[reflect.TypeOf(kind)] = true
			}
		}
	}
	if len(found) == 0 {
		t.Fatal("no kind is kept as another type")
	}
	return found
}

// A kind that is kept as another type is in the answer of no generic client and no generic cache.
func TestForeignKinds_areHandedOutToNobody(t *testing.T) {
	t.Parallel()
	live := map[reflect.Type]bool{}
	for _, kind := range ReadLive() {
		live[reflect.TypeOf(kind)] = true
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, cnpgv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	is := foreign(t)
	for kind := range ByObject("system") {
		refused := is[reflect.TypeOf(kind)]
		if refused && !live[reflect.TypeOf(kind)] {
			t.Errorf("%T: a client reads it from the informers", kind)
		}
		of, _, err := scheme.ObjectKinds(kind)
		if err != nil {
			t.Fatal(err)
		}
		list, err := scheme.New(of[0].GroupVersion().WithKind(of[0].Kind + "List"))
		if err != nil {
			t.Fatal(err)
		}
		if err := (guarded{served{}}).Get(t.Context(), client.ObjectKey{}, kind); (err != nil) != refused {
			t.Errorf("Get %T: %v, want it refused: %t", kind, err, refused)
		}
		if err := (guarded{served{}}).List(t.Context(), list.(client.ObjectList)); (err != nil) != refused {
			t.Errorf("List %T: %v, want it refused: %t", list, err, refused)
		}
	}
}

func TestReader_saysOfWhichInformerItWaitedInVain(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	informer := toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, &cnpgv1.Cluster{}, 0, nil)
	kept, err := OfClusters(ctx, informersOf{informer: informer})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kept.Clusters(ctx); err == nil || !strings.Contains(err.Error(), "v1.Cluster") {
		t.Errorf("got %v", err)
	}
}

type informersOf struct {
	cache.Informers
	informer toolscache.SharedIndexInformer
}

func (i informersOf) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return i.informer, nil
}

// asked is a mapper that counts what it is asked for, and knows nothing at first.
type asked struct {
	apimeta.RESTMapper
	times int
}

func (a *asked) RESTMapping(kind schema.GroupKind, versions ...string) (*apimeta.RESTMapping, error) {
	if a.times++; a.times == 1 {
		return nil, &apimeta.NoKindMatchError{GroupKind: kind, SearchedVersions: versions}
	}
	return &apimeta.RESTMapping{GroupVersionKind: kind.WithVersion(versions[0]), Scope: apimeta.RESTScopeNamespace}, nil
}

func TestRemembering_asksOnceForWhatThereIs(t *testing.T) {
	t.Parallel()
	mapper := &asked{}
	m := remember(mapper)
	pod := corev1.SchemeGroupVersion.WithKind("Pod")
	if _, err := m.RESTMapping(pod.GroupKind(), pod.Version); !apimeta.IsNoMatchError(err) {
		t.Errorf("before the kind is known: %v", err)
	}
	for range 3 {
		for _, kind := range []schema.GroupVersionKind{pod, corev1.SchemeGroupVersion.WithKind("Service")} {
			if found, err := m.RESTMapping(kind.GroupKind(), kind.Version); err != nil || found.GroupVersionKind != kind {
				t.Errorf("%s: %v, %v", kind, found, err)
			}
		}
	}
	if mapper.times != 3 {
		t.Errorf("the mapper was asked %d times, want 3", mapper.times)
	}
}
