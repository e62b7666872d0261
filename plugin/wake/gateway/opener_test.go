package gateway

import (
	"errors"
	"testing"
)

func TestListen_leavesFileDescriptors(t *testing.T) {
	t.Parallel()
	o, err := NewOpener()
	if err != nil {
		t.Fatal(err)
	}
	if most := o.Most(); most < 0 || most > 1<<30 {
		t.Errorf("this process may open %d ports", most)
	}
	o.most = 1
	first, err := o.Listen(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Listen(t.Context(), 0); !errors.Is(err, ErrNoDescriptor) {
		t.Errorf("one too many: %v", err)
	}
	for range 2 { // closed twice it counts once
		_ = first.Close()
	}
	again, err := o.Listen(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Close() }()
	if _, err := o.Listen(t.Context(), 0); !errors.Is(err, ErrNoDescriptor) {
		t.Errorf("one too many after one was closed twice: %v", err)
	}
}
