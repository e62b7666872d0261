package idle

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

const (
	// defaultThreshold is the default of xataio/cnpg-i-scale-to-zero.
	defaultThreshold = 30 * time.Minute
	// maximumMinutes is a year: a larger number is a mistake rather than a setting.
	maximumMinutes = 525600
	// shortestDoze is the shortest time after which a cluster dozes. After it has lifted a fence, the instance manager
	// obeys no other for up to 25 seconds (1.30: pkg/management/postgres/instance.go), so that clients would wait that
	// long for PostgreSQL to stop.
	shortestDoze = 30 * time.Second
)

// Policy is the configuration in a Cluster's annotations.
type Policy struct {
	// Enabled turns the feature on. Observed has everything watched and decided, and nothing done.
	Enabled, Observed bool
	// Threshold is how long the cluster must be idle before it hibernates.
	Threshold time.Duration
	// Doze is how long it must be idle before it dozes, less than Threshold; zero if it does not doze.
	Doze time.Duration
	// Database is the database whose control channel is used. It is valid only if DatabaseSet.
	Database string
	// DatabaseSet is whether the annotation exists. Without it, the application's database is used; if it is empty,
	// none is.
	DatabaseSet bool
	// Queries says that an idle session counts only until the end of its last statement.
	Queries bool
	// Ignore describes the sessions that never count.
	Ignore []Pattern
	// KeepAwake are the times of the week without sleep.
	KeepAwake []Window
	// KeepAwakeUntil is a time before which there is no sleep, or zero.
	KeepAwakeUntil time.Time
	// SleepRequested is when sleep was requested as soon as nothing is in use; zero if it was not, or too long ago.
	SleepRequested time.Time
	// WakeRequested is when a wake was requested; zero if it was not, or too long ago.
	WakeRequested time.Time
	// Manual says that connections do not wake the cluster. OnWindow, OnObjects and OnBackup say that these do: a window
	// of KeepAwake that opens, an object that only a running instance can apply, and a ScheduledBackup that is due.
	Manual, OnWindow, OnObjects, OnBackup bool
	// AcceptGateway says that PostgreSQL may see the gateway's address even if rules distinguish addresses.
	AcceptGateway bool
	// PoolersSleep says that the cluster's Poolers have no instances while it hibernates.
	PoolersSleep bool
	// BackupMaxAge is how old the last completed Backup may become before the sleeping cluster is woken for one; zero: it
	// is not woken for that.
	BackupMaxAge time.Duration
	// BackupAnyAge says that the annotation allows any age, so that the retention policy sets no limit either.
	BackupAnyAge bool
}

// Watches reports whether the sessions are watched.
func (p Policy) Watches() bool { return p.Enabled || p.Observed }

// KeepsAwake reports whether the policy forbids sleep at that time.
func (p Policy) KeepsAwake(now time.Time) bool {
	inside, _ := p.inWindow(now)
	return inside || now.Before(p.awakeUntil())
}

// ByPeopleOnly reports whether nothing but people wakes the cluster.
func (p Policy) ByPeopleOnly() bool { return p.Manual && !p.OnWindow && !p.OnObjects && !p.OnBackup }

// WakesByAge reports whether the sleeping cluster is woken because of the age of its last Backup.
func (p Policy) WakesByAge() bool { return p.BackupMaxAge != 0 && !p.ByPeopleOnly() }

// Wake returns the value of the annotation that specifies what wakes the cluster.
func (p Policy) Wake() string {
	if p.ByPeopleOnly() {
		return contract.WakeManual
	}
	var listed []string
	for _, item := range []struct {
		wakes bool
		by    string
	}{
		{!p.Manual, contract.WakeOnConnect}, {p.OnWindow, contract.WakeOnWindow}, {p.OnObjects, contract.WakeOnObjects},
		{p.OnBackup, contract.WakeOnBackup},
	} {
		if item.wakes {
			listed = append(listed, item.by)
		}
	}
	return strings.Join(listed, ",")
}

// awakeUntil returns the time before which an annotation forbids sleep, or zero.
func (p Policy) awakeUntil() time.Time {
	if p.WakeRequested.IsZero() {
		return p.KeepAwakeUntil
	}
	return latest(p.KeepAwakeUntil, p.WakeRequested.Add(contract.MaxRequestAge))
}

// Problem is an invalid annotation.
type Problem struct {
	// Key is the annotation.
	Key string
	// Value is its value.
	Value string
	// Allowed says which values are allowed.
	Allowed string
	// Default says that the Cluster's Namespace has it.
	Default bool
}

// String returns the key, the value and what is allowed.
func (p Problem) String() string {
	whose := ""
	if p.Default {
		whose = ", set on the Namespace,"
	}
	return fmt.Sprintf("annotation %s%s has the value %q: %s", p.Key, whose, p.Value, p.Allowed)
}

// UnderstoodFrom returns when the problems will be gone without a change of an annotation, because times that are too
// far ahead come nearer. It is zero if there are no problems, or if they will stay.
func UnderstoodFrom(problems []Problem) time.Time {
	var from time.Time
	for _, p := range problems {
		limits := map[string]time.Duration{
			contract.AnnotationKeepAwakeUntil: contract.MaxKeepAwake,
			contract.AnnotationSleepRequested: contract.MaxRequestAge, contract.AnnotationWakeRequested: contract.MaxRequestAge,
		}
		at, err := time.Parse(time.RFC3339, p.Value)
		limit, ok := limits[p.Key]
		if err != nil || !ok {
			return time.Time{}
		}
		if nearEnough := at.Add(-limit); nearEnough.After(from) {
			from = nearEnough
		}
	}
	return from
}

const (
	allowedEnabled   = `it must be "true", "false" or "observe"`
	allowedMinutes   = `it must be a positive number of minutes, at most 525600, such as "30" or "0.5"`
	allowedDoze      = `it must be "none" or a number of minutes, at least "0.5", and less than inactivity-minutes`
	allowedActivity  = `it must be "connections" or "queries"`
	allowedWake      = `it must be "manual" or a list of "on-connect", "window", "objects" and "backup", such as "on-connect,objects"`
	allowedIgnore    = `it must be "none" or a list such as "user=monitoring application=datadog*; client=192.0.2.10"`
	allowedKeepAwake = `it must be "none" or a list such as "Mon-Fri 08:00-18:00 Europe/Berlin; Sat 10:00-12:00 UTC"`
	allowedUntil     = `it must be an RFC 3339 time, at most 7 days ahead, such as "2026-03-01T18:00:00Z"`
	allowedRequest   = `it must be an RFC 3339 time, at most 5 minutes ahead, such as "2026-03-01T18:00:00Z"`
	allowedGateway   = `it must be "accept" or "reject"`
	allowedPoolers   = `it must be "sleep" or "none"`
	allowedMaxAge    = `it must be "none" or a whole number of hours or days, from "1h" to "365d", such as "7d"`
	allowedUpdate    = `it must be "on-restart" or "immediate"`
	allowedOnCluster = "set it on a Cluster; it cannot be a default"
	allowedDefaults  = "only the plugin writes this annotation; remove it"
	unknownKey       = "there is no such annotation; known are enabled, inactivity-minutes, doze-minutes, activity, ignore, keep-awake, keep-awake-until, sleep-requested, wake-requested, wake, gateway-address, sidecar-update, poolers, backup-max-age and database"
)

// ofOneCluster are the annotations that are no defaults for others.
var ofOneCluster = []string{
	contract.AnnotationKeepAwakeUntil, contract.AnnotationSleepRequested, contract.AnnotationWakeRequested,
	contract.AnnotationAnnounced, contract.AnnotationGatewayReady, contract.AnnotationGatewayHolding, contract.AnnotationDozingSince, contract.AnnotationPostgresStopped, contract.AnnotationRestartFailed,
	contract.AnnotationAsleepSince, contract.AnnotationAsleepReason, contract.AnnotationLastWake, contract.AnnotationUnroutableServices,
	contract.AnnotationSuspended, contract.AnnotationInstances,
}

// decimal matches digits with an optional fraction, but no sign, exponent, space or hexadecimal digits, which
// ParseFloat would accept.
var decimal = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,9})?$`)

// wakes matches what wakes a cluster.
var wakes = regexp.MustCompile(`^(manual|(on-connect|window|objects|backup)( *, *(on-connect|window|objects|backup))*)$`)

// age matches a whole number of hours or days, and its groups are that.
var age = regexp.MustCompile(`^(?:([1-9][0-9]{0,3})h|([1-9][0-9]{0,2})d)$`)

func parseMaxAge(value string) (time.Duration, bool) {
	found := age.FindStringSubmatch(value)
	if found == nil {
		return 0, false
	}
	hours, _ := strconv.Atoi(found[1]) // one of them is empty
	days, _ := strconv.Atoi(found[2])
	parsed := time.Duration(hours+24*days) * time.Hour
	return parsed, parsed <= maximumMinutes*time.Minute
}

// ParsePolicy parses the annotations of a Cluster, with its Namespace's defaults, and reports all problems, sorted by
// key. A Policy with problems is disabled: an invalid value never falls back to a default. now limits how far ahead a
// time may be.
func ParsePolicy(annotations map[string]string, now time.Time) (Policy, []Problem) {
	policy, problems := parse(contract.Effective(annotations), annotations, now)
	for i := range problems {
		_, own := annotations[problems[i].Key]
		problems[i].Default = !own
	}
	if _, err := contract.DecodeDefaults(annotations); err != nil {
		policy.Enabled, policy.Observed = false, false
		problems = sorted(append(problems, Problem{
			Key: contract.AnnotationDefaults, Value: annotations[contract.AnnotationDefaults], Allowed: allowedDefaults,
		}))
	}
	return policy, problems
}

// ParseDefaults returns the annotations of a Namespace that are defaults for its Clusters, and reports all problems,
// sorted by key.
func ParseDefaults(annotations map[string]string, now time.Time) (map[string]string, []Problem) {
	defaults := map[string]string{}
	var others []Problem
	for key, value := range annotations {
		switch {
		case !strings.HasPrefix(key, contract.Prefix):
		case slices.Contains(ofOneCluster, key):
			others = append(others, Problem{Key: key, Value: value, Allowed: allowedOnCluster})
		default:
			defaults[key] = value
		}
	}
	_, problems := parse(defaults, defaults, now)
	return defaults, sorted(append(problems, others...))
}

// parse parses the effective annotations; own are those of the Cluster itself. A default doze-minutes that is not less
// than the Cluster's threshold is ignored.
func parse(annotations, own map[string]string, now time.Time) (Policy, []Problem) {
	policy := Policy{Threshold: defaultThreshold, OnObjects: true}
	var problems []Problem
	for key, value := range annotations {
		if !strings.HasPrefix(key, contract.Prefix) {
			continue
		}
		if allowed := policy.read(key, value, now); allowed != "" {
			problems = append(problems, Problem{Key: key, Value: value, Allowed: allowed})
		}
	}
	if policy.Doze >= policy.Threshold {
		if value, its := own[contract.AnnotationDozeMinutes]; its {
			problems = append(problems, Problem{Key: contract.AnnotationDozeMinutes, Value: value, Allowed: allowedDoze})
		}
		policy.Doze = 0
	}
	if len(problems) != 0 {
		policy.Enabled, policy.Observed = false, false
	}
	return policy, sorted(problems)
}

func sorted(problems []Problem) []Problem {
	slices.SortFunc(problems, func(a, b Problem) int { return strings.Compare(a.Key, b.Key) })
	return problems
}

// read parses one annotation. If it is invalid, read returns what is allowed.
func (p *Policy) read(key, value string, now time.Time) (allowed string) {
	switch key {
	case contract.AnnotationEnabled:
		if value != "true" && value != "false" && value != contract.EnabledObserve {
			return allowedEnabled
		}
		p.Enabled, p.Observed = value == "true", value == contract.EnabledObserve
	case contract.AnnotationInactivityMinutes:
		threshold, ok := parseMinutes(value)
		if !ok {
			return allowedMinutes
		}
		p.Threshold = threshold
	case contract.AnnotationDozeMinutes:
		if value == contract.None {
			break
		}
		doze, ok := parseMinutes(value)
		if !ok || doze < shortestDoze {
			return allowedDoze
		}
		p.Doze = doze
	case contract.AnnotationDatabase:
		p.Database, p.DatabaseSet = value, true
	case contract.AnnotationActivity:
		if value != contract.ActivityConnections && value != contract.ActivityQueries {
			return allowedActivity
		}
		p.Queries = value == contract.ActivityQueries
	case contract.AnnotationWake:
		if !wakes.MatchString(value) {
			return allowedWake
		}
		p.Manual = !strings.Contains(value, contract.WakeOnConnect)
		p.OnWindow = strings.Contains(value, contract.WakeOnWindow)
		p.OnObjects = strings.Contains(value, contract.WakeOnObjects)
		p.OnBackup = strings.Contains(value, contract.WakeOnBackup)
	case contract.AnnotationGatewayAddress:
		if value != contract.GatewayAccept && value != contract.GatewayReject {
			return allowedGateway
		}
		p.AcceptGateway = value == contract.GatewayAccept
	case contract.AnnotationPoolers:
		if value != contract.PoolersSleep && value != contract.None {
			return allowedPoolers
		}
		p.PoolersSleep = value == contract.PoolersSleep
	case contract.AnnotationBackupMaxAge:
		if p.BackupAnyAge = value == contract.None; p.BackupAnyAge {
			break
		}
		age, ok := parseMaxAge(value)
		if !ok {
			return allowedMaxAge
		}
		p.BackupMaxAge = age
	case contract.AnnotationSidecarUpdate:
		if value != contract.UpdateOnRestart && value != contract.UpdateImmediate {
			return allowedUpdate
		}
	case contract.AnnotationIgnore:
		if value == contract.None {
			break
		}
		patterns, err := parsePatterns(value)
		if err != nil {
			return err.Error() + "; " + allowedIgnore
		}
		p.Ignore = patterns
	case contract.AnnotationKeepAwake:
		if value == contract.None {
			break
		}
		windows, err := parseWindows(value)
		if err != nil {
			return err.Error() + "; " + allowedKeepAwake
		}
		p.KeepAwake = windows
	case contract.AnnotationKeepAwakeUntil:
		until, err := time.Parse(time.RFC3339, value)
		if err != nil || until.After(now.Add(contract.MaxKeepAwake)) {
			return allowedUntil
		}
		p.KeepAwakeUntil = until
	case contract.AnnotationSleepRequested:
		requested, ok := parseRequest(value, now)
		if !ok {
			return allowedRequest
		}
		p.SleepRequested = requested
	case contract.AnnotationWakeRequested:
		requested, ok := parseRequest(value, now)
		if !ok {
			return allowedRequest
		}
		p.WakeRequested = requested
	default:
		if !slices.Contains(ofOneCluster, key) {
			return unknownKey
		}
	}
	return ""
}

// parseRequest parses the time of a request, and returns zero if that was too long ago. A time in the future counts as
// now.
func parseRequest(value string, now time.Time) (time.Time, bool) {
	requested, err := time.Parse(time.RFC3339, value)
	if err != nil || requested.After(now.Add(contract.MaxRequestAge)) {
		return time.Time{}, false
	}
	if requested.Before(now.Add(-contract.MaxRequestAge)) {
		return time.Time{}, true
	}
	return earliest(requested, now), true
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
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
