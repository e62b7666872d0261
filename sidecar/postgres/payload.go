package postgres

import (
	"fmt"
	"strings"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Kind says what a notification means.
type Kind string

// The kinds of notifications.
const (
	// KindActivity says that the database is in use now.
	KindActivity Kind = "activity"
	// KindBacklog says that the listener has just begun to listen, so that notifications may have been missed before.
	KindBacklog Kind = "backlog"
	// KindKeepAwake asks to stay awake for a time.
	KindKeepAwake Kind = "keep_awake"
	// KindRelease takes what was asked for back.
	KindRelease Kind = "release"
	// KindHibernate asks to sleep as soon as nothing is in use.
	KindHibernate Kind = "hibernate"
	// KindMalformed is everything else; it is passed over.
	KindMalformed Kind = "malformed"
)

// Kinds is the closed list of kinds.
func Kinds() []Kind {
	return []Kind{KindActivity, KindBacklog, KindKeepAwake, KindRelease, KindHibernate, KindMalformed}
}

// Notification is what arrived on the control channel.
type Notification struct {
	Kind Kind
	// For is how long to stay awake; only of KindKeepAwake.
	For time.Duration
	// At is when it arrived.
	At time.Time
	// Err says what is allowed; only of KindMalformed.
	Err error
}

// allowedPayloads is what the log says of a payload that is not understood.
const allowedPayloads = `allowed are "activity", "keep-awake DURATION" (up to 168h, such as "2h30m"), "release" and "hibernate"`

// ParsePayload reads a notification's payload.
func ParsePayload(payload string) Notification {
	command, argument, hasArgument := strings.Cut(payload, " ")
	switch {
	case hasArgument && command == "keep-awake":
		length, err := time.ParseDuration(argument)
		if err != nil || length <= 0 || length > contract.LongestKeepAwake {
			break
		}
		return Notification{Kind: KindKeepAwake, For: length}
	case hasArgument:
	case payload == "", payload == "activity":
		return Notification{Kind: KindActivity}
	case payload == "release":
		return Notification{Kind: KindRelease}
	case payload == "hibernate":
		return Notification{Kind: KindHibernate}
	}
	// What somebody sent is not repeated: it may be long, and it may be a secret that went astray.
	return Notification{
		Kind: KindMalformed, Err: fmt.Errorf("a payload of %d bytes is not understood: %s", len(payload), allowedPayloads),
	}
}
