package monitor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/process"
)

// checkpointVersion is the version of the file format.
const checkpointVersion = 1

// Checkpoint is the idle clock of an instance, which a restarted sidecar resumes if nothing has happened meanwhile.
type Checkpoint struct {
	// Specification identifies what the Cluster specified.
	Specification string
	// State is the state at the newest sample.
	State idle.State
	// Ledger and Started are the server's values at that sample.
	Ledger  activity.Ledger
	Started int64
}

// checkpointContent is the content of the file. Its times are nanoseconds since boot, zero for none, because a step of
// the wall clock must not lengthen the idle time.
type checkpointContent struct {
	Version       int             `json:"version"`
	Instance      string          `json:"instance"`
	Specification string          `json:"specification"`
	SavedAt       int64           `json:"savedAt"`
	IdleSince     int64           `json:"idleSince"`
	EligibleSince int64           `json:"eligibleSince"`
	SampledUntil  int64           `json:"lookedUntil"` // the key of the first release, because files outlive the program
	LastActivity  int64           `json:"lastActivity"`
	Ledger        activity.Ledger `json:"ledger"`
	Started       int64           `json:"started"`
}

// CheckpointFile is the file that has the newest checkpoint of an instance, given by the UID of its pod.
type CheckpointFile struct {
	path, instance string
	// now returns the time, and the time since boot.
	now func() (time.Time, time.Duration, error)
}

// NewCheckpointFile returns the file of an instance at path.
func NewCheckpointFile(path, instance string) *CheckpointFile {
	return &CheckpointFile{path: path, instance: instance, now: sinceBoot}
}

func sinceBoot() (time.Time, time.Duration, error) {
	var spec unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &spec); err != nil {
		return time.Time{}, 0, fmt.Errorf("read the time since the machine's start: %w", err)
	}
	return time.Now(), time.Duration(spec.Nano()), nil
}

// Save replaces the checkpoint.
func (f *CheckpointFile) Save(c Checkpoint) error {
	now, up, err := f.now()
	if err != nil {
		return err
	}
	stamp := func(t time.Time) int64 {
		if t.IsZero() {
			return 0
		}
		return max(int64(up-now.Sub(t)), 1)
	}
	if c.State.Blocked { // the blocker may end meanwhile
		c.State.IdleSince = time.Time{}
	}
	body, err := json.Marshal(checkpointContent{
		Version: checkpointVersion, Instance: f.instance, Specification: c.Specification, SavedAt: int64(up),
		Ledger: c.Ledger, Started: c.Started,
		IdleSince: stamp(c.State.IdleSince), EligibleSince: stamp(c.State.EligibleSince),
		SampledUntil: stamp(c.State.SampledUntil), LastActivity: stamp(c.State.LastActivity),
	})
	if err != nil {
		return fmt.Errorf("encode the checkpoint: %w", err)
	}
	if err := process.WriteFile(f.path, body); err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	return nil
}

// Load returns the checkpoint. It fails if the file is not of this instance and this start of the machine.
func (f *CheckpointFile) Load() (Checkpoint, error) {
	body, err := os.ReadFile(f.path)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("read the checkpoint: %w", err)
	}
	now, up, err := f.now()
	if err != nil {
		return Checkpoint{}, err
	}
	return decodeCheckpoint(body, f.instance, now, up)
}

func decodeCheckpoint(body []byte, instance string, now time.Time, up time.Duration) (Checkpoint, error) {
	var c checkpointContent
	if err := json.Unmarshal(body, &c); err != nil {
		return Checkpoint{}, fmt.Errorf("unusable checkpoint: %w", err)
	}
	if c.Version != checkpointVersion || c.Instance != instance || c.SavedAt > int64(up) {
		return Checkpoint{}, errors.New("unusable checkpoint: it is another instance's, version's or start's")
	}
	for _, stamp := range []int64{c.IdleSince, c.EligibleSince, c.SampledUntil, c.LastActivity} {
		if stamp < 0 || stamp > c.SavedAt {
			return Checkpoint{}, errors.New("unusable checkpoint: a time is later than the file")
		}
	}
	moment := func(stamp int64) time.Time {
		if stamp == 0 {
			return time.Time{}
		}
		return now.Add(time.Duration(stamp) - up)
	}
	return Checkpoint{
		Specification: c.Specification, Ledger: c.Ledger, Started: c.Started,
		State: idle.State{
			IdleSince: moment(c.IdleSince), EligibleSince: moment(c.EligibleSince),
			SampledUntil: moment(c.SampledUntil), LastActivity: moment(c.LastActivity),
		},
	}, nil
}
