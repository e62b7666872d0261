// Package checkpoint keeps what is known of an instance's idleness in a file, so that a sidecar that is started again can go on
// with the clock if nothing has happened meanwhile.
//
// Times are kept by the machine's clock since its start, which nobody sets: a step of the other one must not make the time
// longer.
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

// version is that of the file.
const version = 1

// ErrUnusable says that the file is not one of this instance and this start of the machine.
var ErrUnusable = errors.New("unusable checkpoint")

// Checkpoint is what is kept.
type Checkpoint struct {
	// Instance is the UID of the pod.
	Instance string
	// State is that of the newest sample.
	State idle.State
	// Ledger and Started are what the server said at that sample.
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
	SampledUntil  int64           `json:"lookedUntil"` // the key of the first release: files outlive the program
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

// NewStore keeps the checkpoint at a path.
func NewStore(path string) *Store { return &Store{Path: path, now: sinceStart} }

func sinceStart() (time.Time, time.Duration, error) {
	var spec unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &spec); err != nil {
		return time.Time{}, 0, fmt.Errorf("read the time since the machine's start: %w", err)
	}
	return time.Now(), time.Duration(spec.Nano()), nil
}

// Save replaces what is kept.
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
	body, err := json.Marshal(file{
		Version: version, Instance: c.Instance, SavedAt: int64(up), Ledger: c.Ledger, Started: c.Started,
		IdleSince: stamp(c.State.IdleSince), EligibleSince: stamp(c.State.EligibleSince),
		SampledUntil: stamp(c.State.SampledUntil), LastActivity: stamp(c.State.LastActivity),
	})
	if err != nil {
		return fmt.Errorf("encode the checkpoint: %w", err)
	}
	fresh := s.Path + ".new" // a worker that is killed while it writes must not leave half of it
	if err := os.WriteFile(fresh, body, 0o600); err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	if err := os.Rename(fresh, s.Path); err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	return nil
}

// Load returns what is kept of an instance. Errors are [ErrUnusable], or say why there is nothing to read.
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
		Instance: f.Instance, Ledger: f.Ledger, Started: f.Started,
		State: idle.State{
			IdleSince: moment(f.IdleSince), EligibleSince: moment(f.EligibleSince),
			SampledUntil: moment(f.SampledUntil), LastActivity: moment(f.LastActivity),
		},
	}, nil
}
