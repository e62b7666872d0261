package contract

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// AnnouncementLifetime is how far ahead an announcement's deadline lies. A reader passes over one that is farther ahead.
const AnnouncementLifetime = 30 * time.Second

// ErrNotAnAnnouncement says that an annotation's value is none.
var ErrNotAnAnnouncement = errors.New(`not an announcement such as "<pod UID> 2026-03-01T18:00:00.5Z"`)

// Announcement says that an instance is about to put its cluster to sleep. It is the value of [AnnotationAnnounced], and
// the gateway acknowledges it by repeating it in [AnnotationGatewayReady].
type Announcement struct {
	// PodUID is that of the instance, Deadline when the announcement means nothing any more.
	PodUID   string
	Deadline time.Time
}

// ParseAnnouncement reads the annotation's value. Errors are [ErrNotAnAnnouncement].
func ParseAnnouncement(value string) (Announcement, error) {
	pod, until, _ := strings.Cut(value, " ")
	deadline, err := time.Parse(time.RFC3339Nano, until)
	if err != nil || pod == "" {
		return Announcement{}, fmt.Errorf("%q: %w", value, ErrNotAnAnnouncement)
	}
	return Announcement{PodUID: pod, Deadline: deadline}, nil
}

// String is the annotation's value.
func (a Announcement) String() string {
	return a.PodUID + " " + a.Deadline.UTC().Format(time.RFC3339Nano)
}

// Valid reports whether the announcement counts now, and when that changes; zero: never again.
func (a Announcement) Valid(now time.Time) (valid bool, change time.Time) {
	switch {
	case !a.Deadline.After(now):
		return false, time.Time{}
	case a.Deadline.Sub(now) > AnnouncementLifetime: // the instance's clock is a little ahead of ours
		return false, a.Deadline.Add(-AnnouncementLifetime)
	default:
		return true, a.Deadline
	}
}
