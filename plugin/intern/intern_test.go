package intern

import (
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

// The tests are not parallel, because the known strings are global.

func TestATextStaysTheOnlyCopyWhenMemoryIsCollected(t *testing.T) {
	const namespace = "a-namespace-of-many-objects"
	first := String(strings.Clone(namespace))
	for range 3 { // a weak reference is cleared by the second at the latest
		runtime.GC()
	}
	if again := String(strings.Clone(namespace)); again != namespace || unsafe.StringData(again) != unsafe.StringData(first) {
		t.Errorf("got %q, the first one's memory: %t", again, unsafe.StringData(again) == unsafe.StringData(first))
	}
}

func TestAPartOfATextDoesNotKeepTheRest(t *testing.T) {
	whole := strings.Repeat("x", 100)
	if part := String(whole[:10]); part != whole[:10] || unsafe.StringData(part) == unsafe.StringData(whole) {
		t.Errorf("got %q of the same memory", part)
	}
}

func TestWhatIsKnownIsBounded(t *testing.T) {
	for i := range 2*remembered + 1 {
		if text := strconv.Itoa(i); String(text) != text {
			t.Fatalf("%q has become another", text)
		}
	}
	if len(known) > remembered {
		t.Errorf("%d texts are known", len(known))
	}
}
