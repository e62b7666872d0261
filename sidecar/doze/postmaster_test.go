package doze

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cnpg-i/scale-to-zero/internal/postgrestest"
)

// lockOf is the lock file of a postmaster.
func lockOf(p Postmaster) string {
	return fmt.Sprintf("%d\n/var/lib/postgresql/data/pgdata\n%d\n5432\n/controller/run\n", p.PID, p.Started)
}

func TestParseLock(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, content string
		want          Postmaster
		err           error
	}{
		{"a postmaster's file", lockOf(first), first, nil},
		{"a file that is being written", "", none, errLock},
		{"a file of which a part is written", lockOf(first)[:40], none, errLock},
		{"a number of which a part is written", "22\n/data\n17953", none, errLock},
		{"a file of a process that is no postmaster", "-22\n/data\n1795393100\n5432\n/run\n", none, errLock},
		{"a file without a start", "22\n/data\n\n5432\n/run\n", none, errLock},
		{"another file", "a\nb\nc\nd\n", none, errLock},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got, err := parseLock([]byte(row.content)); got != row.want || !errors.Is(err, row.err) {
				t.Errorf("got %+v, %v, want %+v, %v", got, err, row.want, row.err)
			}
		})
	}
}

func FuzzParseLock(f *testing.F) {
	f.Add([]byte(lockOf(first)))
	f.Add([]byte("-1\n\n0\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		p, err := parseLock(content)
		if err != nil && (!errors.Is(err, errLock) || p != none) || err == nil && (!p.Running || p.PID <= 0 || p.Started <= 0) {
			t.Errorf("%q is read as %+v, %v", content, p, err)
		}
		for length := range content { // a part of a file never names another process
			if part, err := parseLock(content[:length]); err == nil && part != p {
				t.Errorf("%q is read as %+v, and %q as %+v", content, p, content[:length], part)
			}
		}
	})
}

func TestReadLock_anErrorIsNotAStop(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	for _, row := range []struct {
		rule, path string
		fails      bool
	}{
		{"a file that does not exist", filepath.Join(directory, "none"), false},
		{"a file that cannot be read", directory, true},
	} {
		if got, err := readLock(row.path); got != none || (err != nil) != row.fails {
			t.Errorf("%s: %+v, %v", row.rule, got, err)
		}
	}
}

func TestObserver_followsARealServer(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		observer := NewObserver(s.Directory, s.Port, nil)
		expect := func(running bool) (found Postmaster) {
			t.Helper()
			found, err := observer.Read()
			if err != nil || found.Running != running {
				t.Fatalf("got %+v, %v, want running %t", found, err, running)
			}
			return found
		}
		before := expect(true)
		if refuses(t.Context(), filepath.Join(s.Directory, fmt.Sprintf(".s.PGSQL.%d", s.Port))) {
			t.Error("a running server refuses connections")
		}
		s.Stop(t)
		expect(false)
		if err := observer.AwaitStopped(t.Context()); err != nil {
			t.Error(err)
		}
		s.Start(t)
		if after := expect(true); after == before {
			t.Errorf("both are %+v", after)
		}
	})
}

func TestAwaitStopped_noticesAServerThatWasKilled(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		if err := s.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-s.Ended()
		observer := NewObserver(s.Directory, s.Port, nil)
		if left, err := observer.Read(); err != nil || !left.Running {
			t.Fatalf("it left %+v, %v", left, err)
		}
		if err := observer.AwaitStopped(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
