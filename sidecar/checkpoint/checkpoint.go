// Package checkpoint saves the idle clock of an instance in a file, so that a restarted sidecar can resume it if nothing has
// happened meanwhile.
//
// Times are saved as time since boot, which nobody sets: a step of the wall clock must not lengthen the idle time.
package checkpoint

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

// version is the version of the file format.
const version = 1

// ErrUnusable means that the file is not of this instance and this boot of the machine.
var ErrUnusable = errors.New("unusable checkpoint")

// Checkpoint is the saved state.
type Checkpoint struct {
	// Instance is the UID of the pod.
	Instance string
	// Specification identifies what the Cluster specified.
	Specification string
	// State is the state at the newest sample.
	State idle.State
	// Ledger and Started are the server's values at that sample.
	Ledger  activity.Ledger
	Started int64
}

// file is the file format; times are nanoseconds since boot, zero for none.
type file struct {
	Version       int             `json:"version"`
	Instance      string          `json:"instance"`
	Specification string          `json:"specification"`
	SavedAt       int64           `json:"savedAt"`
	IdleSince     int64           `json:"idleSince"`
	EligibleSince int64           `json:"eligibleSince"`
	SampledUntil  int64           `json:"lookedUntil"` // the key of the first release, since files outlive the program
	LastActivity  int64           `json:"lastActivity"`
	Ledger        activity.Ledger `json:"ledger"`
	Started       int64           `json:"started"`
}

// Store saves and loads the file.
type Store struct {
	// Path is the path of the file.
	Path string
	// now returns the time, and the time since boot.
	now func() (time.Time, time.Duration, error)
}

// NewStore returns a store for the file at path.
func NewStore(path string) *Store { return &Store{Path: path, now: sinceStart} }

func sinceStart() (time.Time, time.Duration, error) {
	var spec unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &spec); err != nil {
		return time.Time{}, 0, fmt.Errorf("read the time since the machine's start: %w", err)
	}
	return time.Now(), time.Duration(spec.Nano()), nil
}

// Save replaces the checkpoint.
func (s *Store) Save(c Checkpoint) error {
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
	if !c.State.IdleSince.IsZero() && c.State.BlockedUntil.After(c.State.IdleSince) { // the blocker may end meanwhile
		c.State.IdleSince = c.State.BlockedUntil
	}
	body, err := json.Marshal(file{
		Version: version, Instance: c.Instance, Specification: c.Specification, SavedAt: int64(up), Ledger: c.Ledger, Started: c.Started,
		IdleSince: stamp(c.State.IdleSince), EligibleSince: stamp(c.State.EligibleSince),
		SampledUntil: stamp(c.State.SampledUntil), LastActivity: stamp(c.State.LastActivity),
	})
	if err != nil {
		return fmt.Errorf("encode the checkpoint: %w", err)
	}
	fresh := s.Path + ".new" // a worker killed while writing must not leave half a file
	if err := os.WriteFile(fresh, body, 0o600); err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	if err := os.Rename(fresh, s.Path); err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	return nil
}

// Load returns the checkpoint of an instance. Errors are [ErrUnusable], or those of reading the file or the clock.
func (s *Store) Load(instance string) (Checkpoint, error) {
	body, err := os.ReadFile(s.Path)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("read the checkpoint: %w", err)
	}
	now, up, err := s.now()
	if err != nil {
		return Checkpoint{}, err
	}
	return decode(body, instance, now, up)
}

func decode(body []byte, instance string, now time.Time, up time.Duration) (Checkpoint, error) {
	var f file
	if err := json.Unmarshal(body, &f); err != nil {
		return Checkpoint{}, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	if f.Version != version || f.Instance != instance || f.SavedAt > int64(up) {
		return Checkpoint{}, fmt.Errorf("%w: it is another instance's, version's or start's", ErrUnusable)
	}
	for _, stamp := range []int64{f.IdleSince, f.EligibleSince, f.SampledUntil, f.LastActivity} {
		if stamp < 0 || stamp > f.SavedAt {
			return Checkpoint{}, fmt.Errorf("%w: a time is later than the file", ErrUnusable)
		}
	}
	moment := func(stamp int64) time.Time {
		if stamp == 0 {
			return time.Time{}
		}
		return now.Add(time.Duration(stamp) - up)
	}
	return Checkpoint{
		Instance: f.Instance, Specification: f.Specification, Ledger: f.Ledger, Started: f.Started,
		State: idle.State{
			IdleSince: moment(f.IdleSince), EligibleSince: moment(f.EligibleSince),
			SampledUntil: moment(f.SampledUntil), LastActivity: moment(f.LastActivity),
		},
	}, nil
}
