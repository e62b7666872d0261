package contract

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// AnnouncementLifetime is the time from an announcement to its deadline. As long as the deadline is farther away than
// that, readers ignore the announcement.
const AnnouncementLifetime = 30 * time.Second

// ErrInvalidAnnouncement means that an annotation's value is not an announcement.
var ErrInvalidAnnouncement = errors.New(`not an announcement such as "<pod UID> 2026-03-01T18:00:00.5Z" or the same with " doze" after it`)

// dozeSuffix is the end of an announcement of a doze.
const dozeSuffix = " doze"

// Announcement announces that an instance is about to put its cluster to sleep. It is the value of
// [AnnotationAnnounced]. The gateway acknowledges it by copying it to [AnnotationGatewayReady].
type Announcement struct {
	// PodUID is the UID of the instance's pod. The announcement is invalid after Deadline.
	PodUID   string
	Deadline time.Time
	// Doze reports whether the instance is about to doze: PostgreSQL is stopped and its pod kept. Before that, the
	// gateway must hold every client, and confirm that by copying the announcement to [AnnotationGatewayHolding] too.
	Doze bool
}

// ParseAnnouncement parses the annotation's value. Its errors are [ErrInvalidAnnouncement].
func ParseAnnouncement(value string) (Announcement, error) {
	text, doze := strings.CutSuffix(value, dozeSuffix)
	pod, until, _ := strings.Cut(text, " ")
	deadline, err := time.Parse(time.RFC3339Nano, until)
	if err != nil || pod == "" {
		return Announcement{}, fmt.Errorf("%q: %w", value, ErrInvalidAnnouncement)
	}
	return Announcement{PodUID: pod, Deadline: deadline, Doze: doze}, nil
}

// String returns the annotation's value.
func (a Announcement) String() string {
	text := a.PodUID + " " + a.Deadline.UTC().Format(time.RFC3339Nano)
	if a.Doze {
		text += dozeSuffix
	}
	return text
}

// Valid reports whether the announcement is valid now, and when that changes; zero if it does not change any more.
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
