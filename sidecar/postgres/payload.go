package postgres

import (
	"fmt"
	"strings"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Kind is the meaning of a notification.
type Kind string

// The kinds of notifications.
const (
	// KindActivity means that the database is in use now.
	KindActivity Kind = "activity"
	// KindBacklog means that the listener has just started, so that earlier notifications may have been missed.
	KindBacklog Kind = "backlog"
	// KindKeepAwake asks to stay awake for a duration.
	KindKeepAwake Kind = "keep_awake"
	// KindRelease withdraws all keep-awake requests.
	KindRelease Kind = "release"
	// KindHibernate asks to sleep as soon as nothing is in use.
	KindHibernate Kind = "hibernate"
	// KindMalformed is everything else; it is ignored.
	KindMalformed Kind = "malformed"
)

// Kinds returns every kind.
func Kinds() []Kind {
	return []Kind{KindActivity, KindBacklog, KindKeepAwake, KindRelease, KindHibernate, KindMalformed}
}

// Notification is a notification received on the control channel.
type Notification struct {
	Kind Kind
	// For is how long to stay awake; set only for KindKeepAwake.
	For time.Duration
	// At is when it arrived.
	At time.Time
	// Err says what is allowed; set only for KindMalformed.
	Err error
}

// allowedPayloads is logged for a malformed payload.
const allowedPayloads = `it must be "activity", "keep-awake DURATION" (up to 168h, such as "2h30m"), "release" or "hibernate"`

// ParsePayload parses a notification's payload.
func ParsePayload(payload string) Notification {
	command, argument, hasArgument := strings.Cut(payload, " ")
	switch {
	case hasArgument && command == "keep-awake":
		length, err := time.ParseDuration(argument)
		if err != nil || length <= 0 || length > contract.MaxKeepAwake {
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
	// The payload is not repeated: it may be long, or a secret sent by mistake.
	return Notification{
		Kind: KindMalformed, Err: fmt.Errorf("invalid payload of %d bytes: %s", len(payload), allowedPayloads),
	}
}
