// Package evidence keeps what is known of an instance's idleness in a file, so that a sidecar that is started again can go on
// with the clock if nothing has happened meanwhile.
//
// Times are kept by the machine's clock since its start, which nobody sets: a step of the other one must not make the time
// longer.
package evidence

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// version is that of the file.
const version = 1

// ErrUnusable says that the file is not one of this instance and this start of the machine.
var ErrUnusable = errors.New("unusable evidence")

// Evidence is what is kept.
type Evidence struct {
	// Instance is the UID of the pod.
	Instance string
	// State is that of the newest look.
	State idle.State
	// Ledger and Started are what the server said at that look.
	Ledger  activity.Ledger
	Started int64
}

// file is how it is written; times are nanoseconds since the machine's start, zero for none.
type file struct {
	Version       int             `json:"version"`
	Instance      string          `json:"instance"`
	SavedAt       int64           `json:"savedAt"`
	IdleSince     int64           `json:"idleSince"`
	EligibleSince int64           `json:"eligibleSince"`
	LookedUntil   int64           `json:"lookedUntil"`
	LastActivity  int64           `json:"lastActivity"`
	Ledger        activity.Ledger `json:"ledger"`
	Started       int64           `json:"started"`
}

// Store is the place of the file.
type Store struct {
	// Path is that of the file.
	Path string
	// now returns the time, and the time since the machine's start.
	now func() (time.Time, time.Duration, error)
}

// NewStore keeps the evidence at a path.
func NewStore(path string) *Store { return &Store{Path: path, now: sinceStart} }

func sinceStart() (time.Time, time.Duration, error) {
	var spec unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &spec); err != nil {
		return time.Time{}, 0, fmt.Errorf("read the time since the machine's start: %w", err)
	}
	return time.Now(), time.Duration(spec.Nano()), nil
}

// Save replaces what is kept.
func (s *Store) Save(e Evidence) error {
	now, up, err := s.now()
	if err != nil {
		return err
	}
	stamp := func(t time.Time) int64 {
		if t.IsZero() {
			return 0
		}
		return max(int64(up-now.Sub(t)), 1)
	}
	body, err := json.Marshal(file{
		Version: version, Instance: e.Instance, SavedAt: int64(up), Ledger: e.Ledger, Started: e.Started,
		IdleSince: stamp(e.State.IdleSince), EligibleSince: stamp(e.State.EligibleSince),
		LookedUntil: stamp(e.State.LookedUntil), LastActivity: stamp(e.State.LastActivity),
	})
	if err != nil {
		return fmt.Errorf("encode the evidence: %w", err)
	}
	fresh := s.Path + ".new" // a worker that is killed while it writes must not leave half of it
	if err := os.WriteFile(fresh, body, 0o600); err != nil {
		return fmt.Errorf("write the evidence: %w", err)
	}
	if err := os.Rename(fresh, s.Path); err != nil {
		return fmt.Errorf("write the evidence: %w", err)
	}
	return nil
}

// Load returns what is kept of an instance. Errors are [ErrUnusable], or say why there is nothing to read.
func (s *Store) Load(instance string) (Evidence, error) {
	body, err := os.ReadFile(s.Path)
	if err != nil {
		return Evidence{}, fmt.Errorf("read the evidence: %w", err)
	}
	now, up, err := s.now()
	if err != nil {
		return Evidence{}, err
	}
	return decode(body, instance, now, up)
}

func decode(body []byte, instance string, now time.Time, up time.Duration) (Evidence, error) {
	var f file
	if err := json.Unmarshal(body, &f); err != nil {
		return Evidence{}, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	if f.Version != version || f.Instance != instance || f.SavedAt > int64(up) {
		return Evidence{}, fmt.Errorf("%w: it is another instance's, version's or start's", ErrUnusable)
	}
	for _, stamp := range []int64{f.IdleSince, f.EligibleSince, f.LookedUntil, f.LastActivity} {
		if stamp < 0 || stamp > f.SavedAt {
			return Evidence{}, fmt.Errorf("%w: a time is later than the file", ErrUnusable)
		}
	}
	moment := func(stamp int64) time.Time {
		if stamp == 0 {
			return time.Time{}
		}
		return now.Add(time.Duration(stamp) - up)
	}
	return Evidence{
		Instance: f.Instance, Ledger: f.Ledger, Started: f.Started,
		State: idle.State{
			IdleSince: moment(f.IdleSince), EligibleSince: moment(f.EligibleSince),
			LookedUntil: moment(f.LookedUntil), LastActivity: moment(f.LastActivity),
		},
	}, nil
}
