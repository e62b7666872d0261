package informers

import (
	"testing"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
)

func TestEqualNeighboursShareMemory(t *testing.T) {
	t.Parallel()
	ports := func(port int32) []corev1.ServicePort { return []corev1.ServicePort{{Name: "postgres", Port: port}} }
	var all shared[[]corev1.ServicePort]
	first := all.of(ports(5432))
	for _, c := range []struct {
		rule   string
		comes  []corev1.ServicePort
		shares bool
	}{
		{"an equal one is the first", ports(5432), true},
		{"another is itself", ports(5433), false},
		{"after another it is the first again", ports(5432), true},
		{"none is none", nil, false},
	} {
		got := all.of(c.comes)
		if shares := len(got) > 0 && &got[0] == &first[0]; shares != c.shares || len(got) != len(c.comes) || len(got) > 0 && got[0] != c.comes[0] {
			t.Errorf("%s: got %v, shared: %t", c.rule, got, shares)
		}
	}
}

func TestATextThatBeginsANameIsAPartOfIt(t *testing.T) {
	t.Parallel()
	name := "orders-rw"
	for _, c := range []struct {
		rule, text string
		part       bool
	}{
		{"a cluster's name begins its Service's", "orders", true},
		{"an equal text is all of it", "orders-rw", true},
		{"another text is its own", "sales", false},
		{"a longer one, too", "orders-rw-1", false},
		{"no text is none", "", true},
	} {
		got := partOf(name, c.text)
		if part := unsafe.StringData(got) == unsafe.StringData(name); got != c.text || part != c.part {
			t.Errorf("%s: got %q, a part: %t", c.rule, got, part)
		}
	}
}
