package idle

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// defaultThreshold is the reference project's default.
	defaultThreshold = 30 * time.Minute
	// maximumMinutes is a year: a larger number is a mistake rather than a wish.
	maximumMinutes = 525600
)

// Policy is what the annotations of a Cluster ask for.
type Policy struct {
	// Enabled turns the feature on.
	Enabled bool
	// Threshold is how long the cluster must be idle before it sleeps.
	Threshold time.Duration
	// Database names the database whose channel is listened to. It means something only if DatabaseSet.
	Database string
	// DatabaseSet tells whether the annotation is there: without it the application's database is meant, and with an
	// empty value none.
	DatabaseSet bool
}

// Problem is an annotation that is not understood.
type Problem struct {
	// Key is the annotation.
	Key string
	// Value is what it says.
	Value string
	// Allowed says what it may say.
	Allowed string
}

// String names the key, the value and what is allowed.
func (p Problem) String() string {
	return fmt.Sprintf("annotation %s has the value %q: %s", p.Key, p.Value, p.Allowed)
}

const (
	allowedEnabled  = `allowed are "true" and "false"`
	allowedMinutes  = `allowed is a positive number of minutes, at most 525600, such as "30" or "0.5"`
	allowedActivity = `allowed in this version is "connections"`
	allowedWake     = `allowed are "on-connect" and "manual"`
	notSupported    = "this annotation is not supported by this version; remove it"
	unknownKey      = "there is no such annotation; known are enabled, inactivity-minutes, database, activity and wake"
)

// decimal is digits with an optional fraction: no sign, exponent, space or hexadecimal, which ParseFloat would take.
var decimal = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,9})?$`)

// ParsePolicy reads the annotations of a Cluster and reports every problem at once, sorted by key. A Policy with problems
// is turned off: a value that is not understood never falls back to a default.
func ParsePolicy(annotations map[string]string) (Policy, []Problem) {
	policy := Policy{Threshold: defaultThreshold}
	var problems []Problem
	for key, value := range annotations {
		if !strings.HasPrefix(key, Prefix) {
			continue
		}
		if allowed := policy.read(key, value); allowed != "" {
			problems = append(problems, Problem{Key: key, Value: value, Allowed: allowed})
		}
	}
	if len(problems) != 0 {
		policy.Enabled = false
		slices.SortFunc(problems, func(a, b Problem) int { return strings.Compare(a.Key, b.Key) })
	}
	return policy, problems
}

// read takes one annotation in and returns what would have been allowed if it is not understood.
func (p *Policy) read(key, value string) (allowed string) {
	switch key {
	case KeyEnabled:
		if value != "true" && value != "false" {
			return allowedEnabled
		}
		p.Enabled = value == "true"
	case KeyInactivityMinutes:
		threshold, ok := parseMinutes(value)
		if !ok {
			return allowedMinutes
		}
		p.Threshold = threshold
	case KeyDatabase:
		p.Database, p.DatabaseSet = value, true
	case KeyActivity:
		if value != "connections" {
			return allowedActivity
		}
	case KeyWake:
		if value != "on-connect" && value != "manual" {
			return allowedWake
		}
	case KeyIgnore, KeyKeepAwake, KeyKeepAwakeUntil:
		return notSupported
	case KeyAnnounced, KeyGatewayReady, KeyAsleepSince, KeyAsleepReason, KeyLastWake, KeySuspended:
	default:
		return unknownKey
	}
	return ""
}

func parseMinutes(value string) (time.Duration, bool) {
	if !decimal.MatchString(value) {
		return 0, false
	}
	minutes, err := strconv.ParseFloat(value, 64)
	if err != nil || minutes > maximumMinutes {
		return 0, false
	}
	threshold := time.Duration(minutes * float64(time.Minute))
	return threshold, threshold > 0
}
