package informers

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

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
