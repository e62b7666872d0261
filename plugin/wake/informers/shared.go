package informers

import (
	"reflect"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/intern"
)

// one is the only copy in memory of a text that many objects hold.
func one(text string) string { return intern.String(text) }

// partOf is a text that mostly begins an object's name, as a cluster's does its Services': then it is a part of that.
func partOf(name, text string) string {
	if strings.HasPrefix(name, text) {
		return name[:len(text)]
	}
	return one(text)
}

// partsOf are labels of an object of that name.
func partsOf(name string, labels map[string]string) map[string]string {
	kept := make(map[string]string, len(labels))
	for key, value := range labels {
		kept[one(key)] = partOf(name, value)
	}
	return kept
}

// shared has what is equal to one of the last few share its memory: what a fleet's objects say of ports and the like is mostly
// the same, and whose they are is the same of neighbours.
type shared[T any] struct {
	mutex sync.Mutex
	last  []T // the latest first
}

// remembered is how many are compared: a cluster's Services are of three purposes.
const remembered = 8

func (s *shared[T]) of(value T) T {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	at := slices.IndexFunc(s.last, func(before T) bool { return reflect.DeepEqual(before, value) })
	if at >= 0 {
		value = s.last[at]
		s.last = slices.Delete(s.last, at, at+1)
	}
	s.last = slices.Insert(s.last, 0, value)
	s.last = s.last[:min(len(s.last), remembered)]
	return value
}

// owners are whose an object of that name is.
func owners(name string, references []metav1.OwnerReference) []metav1.OwnerReference {
	var kept []metav1.OwnerReference
	for _, r := range references {
		r.APIVersion, r.Kind, r.Name = one(r.APIVersion), one(r.Kind), partOf(name, r.Name)
		kept = append(kept, r)
	}
	return kept
}
