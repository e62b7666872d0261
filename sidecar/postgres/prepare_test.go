package postgres

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/internal/postgrestest"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// Bounds for tests: no machine is so slow that a file takes as long as generous allows, every file is slow under strictest, and under
// hasty an archiver is behind if it takes longer than three seconds.
var (
	generous  = preparation{answer: patience, checkpoint: patience, archived: 2 * patience, slow: patience}
	strictest = preparation{answer: patience, checkpoint: patience, archived: 2 * patience}
	hasty     = preparation{answer: patience, checkpoint: patience, archived: 3 * time.Second, slow: time.Second}
)

func TestArchiving_isJudgedByTheTimeOfOneFile(t *testing.T) {
	t.Parallel()
	type observed struct {
		after         time.Duration
		total, before int64
	}
	for _, row := range []struct {
		rule    string
		queue   []observed
		against idle.Reason
		over    bool
	}{
		{"a file that waits is waited for", []observed{{0, 1, 0}, {9 * time.Second, 1, 0}}, "", false},
		{"a file that is archived soon", []observed{{0, 1, 0}, {2 * time.Second, 0, 0}}, "", true},
		{"a file that takes longer", []observed{{0, 1, 0}, {2*time.Second + 1, 0, 0}}, idle.ReasonArchiverSlow, true},
		{"the time of the files before it is not its own", []observed{{0, 5, 4}, {6 * time.Second, 2, 1}, {7 * time.Second, 1, 0}, {8 * time.Second, 0, 0}}, "", true},
		{"its own time begins when no other is before it", []observed{{0, 5, 4}, {6 * time.Second, 1, 0}, {9 * time.Second, 0, 0}}, idle.ReasonArchiverSlow, true},
		{"a file that is not archived in time", []observed{{0, 5, 4}, {10 * time.Second, 1, 0}}, idle.ReasonArchiverBehind, true},
		{"a file that is archived at the last moment is not behind", []observed{{0, 5, 4}, {9 * time.Second, 2, 1}, {11 * time.Second, 0, 0}}, "", true},
		{"nothing waits", []observed{{0, 0, 0}}, "", true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			now := time.Now()
			follow := archiving{limits: preparing, completed: now, begun: now}
			for i, seen := range row.queue {
				against, over := follow.observe(archiveQueue{seen.total, seen.before}, now.Add(seen.after))
				if last := i == len(row.queue)-1; !last && over || last && (against != row.against || over != row.over) {
					t.Errorf("after %s: %q, over %t", seen.after, against, over)
				}
			}
		})
	}
}

func TestPrepare_tellsWhetherAShutdownWouldTakeLong(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule     string
		settings []string
		limits   preparation
		want     idle.Reason
		archives bool // whether WAL is switched and archived
	}{
		{"nothing is archived", nil, generous, "", false},
		{"nothing is archived, although the mode says so", []string{"archive_mode=on"}, generous, "", false},
		{"the archiver is quick", []string{"archive_mode=on", "archive_command='true'"}, generous, "", true},
		{"the archiver is slow", []string{"archive_mode=on", "archive_command='sleep 1.2'"}, strictest, idle.ReasonArchiverSlow, true},
		{"the archiver fails", []string{"archive_mode=on", "archive_command='false'"}, hasty, idle.ReasonArchiverBehind, false},
		{"the archiver never ends", []string{"archive_mode=on", "archive_command='sleep 1000'"}, hasty, idle.ReasonArchiverBehind, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			postgrestest.From(t, 0, func(t *testing.T, s *postgrestest.Server) {
				s.Execute(t, "create table written as select 1")
				got, err := serverOf(s).prepare(t.Context(), row.limits)
				if err != nil || got != row.want {
					t.Errorf("got %q, %v, want %q", got, err, row.want)
				}
				conn := s.Connect(t, "postgres", "postgres")
				for deadline := time.Now().Add(patience); ; runtime.Gosched() { // the archiver counts a file after it has called it done
					var archived bool
					if err := conn.QueryRow(t.Context(), "select archived_count > 0 from pg_stat_archiver").Scan(&archived); err != nil {
						t.Fatal(err)
					}
					if archived == row.archives {
						break
					}
					if archived || time.Now().After(deadline) {
						t.Fatalf("archived: %t, want %t", archived, row.archives)
					}
				}
			}, row.settings...)
		})
	}
}

func TestPrepare_leavesOneFileToAFastShutdown(t *testing.T) {
	t.Parallel()
	postgrestest.From(t, 0, func(t *testing.T, s *postgrestest.Server) {
		s.Execute(t, "create table written as select 1", "select pg_switch_wal()", "create table more as select 1", "select pg_switch_wal()")
		if got, err := serverOf(s).prepare(t.Context(), generous); err != nil || got != "" {
			t.Fatalf("got %q, %v", got, err)
		}
		before := archivedFiles(t, s)
		s.Stop(t)
		if after := archivedFiles(t, s); len(before) < 3 || len(after) > len(before)+1 {
			t.Errorf("%d files were archived before the shutdown, %d after", len(before), len(after))
		}
	}, "archive_mode=on", "archive_command='echo %f >> archived'")
}

// archivedFiles returns the names that the archive command has written.
func archivedFiles(t *testing.T, s *postgrestest.Server) []string {
	t.Helper()
	names, err := os.ReadFile(filepath.Join(s.Directory, "data", "archived"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(names))
}

func TestSwitchWAL_namesTheNewestCompletedFile(t *testing.T) {
	t.Parallel()
	postgrestest.From(t, 0, func(t *testing.T, s *postgrestest.Server) {
		conn := s.Connect(t, "postgres", "postgres")
		s.Execute(t, "create table written as select 1")
		var inUse string
		if err := conn.QueryRow(t.Context(), "select pg_walfile_name(pg_current_wal_lsn())").Scan(&inUse); err != nil {
			t.Fatal(err)
		}
		completed, err := switchWAL(t.Context(), conn, generous)
		if err != nil || completed != inUse {
			t.Errorf("the file that was in use: got %q, %v, want %q", completed, err, inUse)
		}
		const tries = 10 // the background writer writes a record every 15 seconds if there was one since its last
		for try := 1; ; try++ {
			again, err := switchWAL(t.Context(), conn, generous)
			if err == nil && again == completed {
				break
			}
			if err != nil || try == tries {
				t.Fatalf("the same if nothing was written since: got %q, %v, want %q", again, err, completed)
			}
			completed = again
		}
	}, "archive_mode=on", "archive_command='true'")
}

func TestReadQueue_countsWhatTheArchiverTakesFirst(t *testing.T) {
	t.Parallel()
	postgrestest.From(t, 0, func(t *testing.T, s *postgrestest.Server) {
		const completed = "000000020000000000000005"
		for _, name := range []string{
			"00000002.history.ready", "000000010000000000000009.ready", "000000020000000000000004.ready", "000000020000000000000004.done",
			"000000020000000000000005.00000028.backup.ready", "000000020000000000000005.ready", "000000020000000000000005.partial.done",
			"000000020000000000000006.ready", "00000003.history.ready",
		} {
			if err := os.WriteFile(filepath.Join(s.Directory, "data", "pg_wal", "archive_status", name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if queue, err := readQueue(t.Context(), s.Connect(t, "postgres", "postgres"), completed, generous); err != nil || queue != (archiveQueue{5, 4}) {
			t.Errorf("got %+v, %v", queue, err)
		}
	})
}

func TestPrepare_endsItsSessionWithItsContext(t *testing.T) {
	t.Parallel()
	postgrestest.From(t, 0, func(t *testing.T, s *postgrestest.Server) {
		watcher := s.Connect(t, "postgres", "postgres")
		ours := func() (count int) {
			if err := watcher.QueryRow(t.Context(), "select count(*) from pg_stat_activity where application_name = 'cnpg-i-scale-to-zero'").Scan(&count); err != nil {
				t.Fatal(err)
			}
			return count
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		failed := make(chan error, 1)
		go func() {
			_, err := serverOf(s).Prepare(ctx)
			failed <- err
		}()
		for deadline := time.Now().Add(patience); ours() == 0; {
			if time.Now().After(deadline) {
				t.Fatal("no session is seen")
			}
		}
		cancel()
		begun := time.Now()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		for ours() != 0 {
			if time.Since(begun) > patience {
				t.Fatal("the session is still open")
			}
		}
	}, "archive_mode=on", "archive_command='sleep 1000'")
}

func TestPrepare_aFrozenServerIsAnError(t *testing.T) {
	t.Parallel()
	postgrestest.From(t, 0, func(t *testing.T, s *postgrestest.Server) {
		server := strict(s)
		if err := s.Freeze(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Thaw() }()
		if reason, err := server.Prepare(t.Context()); err == nil || reason != "" {
			t.Errorf("got %q, %v", reason, err)
		}
	})
}

func TestArchiver_isLateIfAFileWaits(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule     string
		settings []string
		works    bool
		want     idle.Reason
	}{
		{"one that fails", []string{"archive_mode=on", "archive_command=false"}, false, idle.ReasonArchiverBehind},
		{"one that works", []string{"archive_mode=on", "archive_command=true"}, true, ""},
		{"without a command nothing waits", []string{"archive_mode=on"}, false, ""},
		{"nothing is archived", nil, false, ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			postgrestest.From(t, 0, func(t *testing.T, s *postgrestest.Server) {
				s.Execute(t, "create table written as select 1", "select pg_switch_wal()")
				if row.works {
					for begun := time.Now(); len(ready(t, s)) != 0; {
						if time.Since(begun) > patience {
							t.Fatal("the archiver takes nothing")
						}
					}
				}
				for _, file := range ready(t, s) { // a minute old
					then := time.Now().Add(-time.Minute)
					if err := os.Chtimes(file, then, then); err != nil {
						t.Fatal(err)
					}
				}
				if got, err := serverOf(s).Archiver(t.Context()); got != row.want || err != nil {
					t.Errorf("got %q, %v, want %q", got, err, row.want)
				}
			}, row.settings...)
		})
	}
}

// ready returns the files that mark WAL for the archiver.
func ready(t *testing.T, s *postgrestest.Server) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.Directory, "data", "pg_wal", "archive_status", "*.ready"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}
