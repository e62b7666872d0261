package plan

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// furthestDeadline is how far ahead an announcement's deadline may be.
const furthestDeadline = 30 * time.Second

// ErrNotAnAnnouncement says that an annotation's value is none.
var ErrNotAnAnnouncement = errors.New(`not an announcement such as "<pod UID> 2026-03-01T18:00:00.5Z"`)

// Announcement says that an instance is about to put its cluster to sleep.
type Announcement struct {
	// Pod is the UID of the instance, Deadline when the announcement means nothing any more.
	Pod      types.UID
	Deadline time.Time
}

// ParseAnnouncement reads the annotation's value. Errors are [ErrNotAnAnnouncement].
func ParseAnnouncement(value string) (Announcement, error) {
	pod, until, _ := strings.Cut(value, " ")
	deadline, err := time.Parse(time.RFC3339Nano, until)
	if err != nil || pod == "" {
		return Announcement{}, fmt.Errorf("%q: %w", value, ErrNotAnAnnouncement)
	}
	return Announcement{Pod: types.UID(pod), Deadline: deadline}, nil
}

// Live tells whether the announcement counts now, and when that changes; zero: never again.
func (a Announcement) Live(now time.Time) (live bool, change time.Time) {
	switch {
	case !a.Deadline.After(now):
		return false, time.Time{}
	case a.Deadline.Sub(now) > furthestDeadline: // the instance's clock is a little ahead of ours
		return false, a.Deadline.Add(-furthestDeadline)
	default:
		return true, a.Deadline
	}
}
