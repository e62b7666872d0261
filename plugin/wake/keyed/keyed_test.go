package keyed

import (
	"sync"
	"testing"
)

func TestMap_keepsWhatIsToBeKept(t *testing.T) {
	t.Parallel()
	var m Map[string, int]
	count := func(by int) func(*int) bool { return func(n *int) bool { *n += by; return *n != 0 } }
	var group sync.WaitGroup
	for range 100 {
		group.Go(func() { m.Change("a", count(1)) })
	}
	group.Wait()
	if got := m.Get("a"); got != 100 || m.Get("b") != 0 || len(m.Keys()) != 1 {
		t.Errorf("got %d of %d keys", got, len(m.Keys()))
	}
	if m.Change("a", count(-100)); len(m.Keys()) != 0 {
		t.Error("a key that is not to be kept is")
	}
	for key, value := range map[string]int{"a": 1, "b": 2, "c": 3} {
		m.Set(key, value)
	}
	m.Delete("a")
	m.DeleteFunc(func(_ string, value int) bool { return value == 2 })
	if len(m.Keys()) != 1 || m.Get("c") != 3 {
		t.Errorf("%d keys are kept", len(m.Keys()))
	}
}

func TestNotifier_tellsWhoListensForTheKey(t *testing.T) {
	t.Parallel()
	var n Notifier[string]
	n.Notify("a") // for which nobody listens
	first, second, other := n.Listen("a"), n.Listen("a"), n.Listen("b")
	n.Notify("a")
	<-first
	<-second
	select {
	case <-other:
		t.Error("a change of another key is told")
	case <-n.Listen("a"):
		t.Error("a change is told twice")
	default:
	}
}
