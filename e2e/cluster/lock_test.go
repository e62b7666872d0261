package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first := must(take(path))(t)
	if _, err := take(path); !errors.Is(err, ErrBusy) {
		t.Errorf("a second claim gives %v, want ErrBusy", err)
	}
	if err := first.write("/somewhere/run"); err != nil {
		t.Fatal(err)
	}
	first.release()

	second := must(take(path))(t)
	if said := must(second.read())(t); said.Run != "/somewhere/run" || said.Process != os.Getpid() {
		t.Errorf("the next holder reads %+v", said)
	}
	if err := second.write(""); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a lock that says nothing is still there: %v", err)
	}

	third := must(take(path))(t) // the second still holds the removed file, which locks nothing
	defer third.release()
	second.release()
	if _, err := take(path); !errors.Is(err, ErrBusy) {
		t.Errorf("the lock of a removed file was taken for the lock: %v", err)
	}
}

// must returns what a call gave, and ends the test if the call failed.
func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}
