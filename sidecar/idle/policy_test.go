package idle

import (
	"go/parser"
	"go/token"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestParsePolicy_readsEveryAnnotation(t *testing.T) {
	t.Parallel()
	minutes := func(value string) map[string]string {
		return map[string]string{contract.AnnotationEnabled: "true", contract.AnnotationInactivityMinutes: value}
	}
	for _, row := range []struct {
		rule        string
		annotations map[string]string
		want        Policy
		bad         []string
	}{
		{"without annotations the feature is off and the threshold half an hour", nil, Policy{Threshold: 30 * time.Minute}, nil},
		{"true turns it on", map[string]string{contract.AnnotationEnabled: "true"}, Policy{Enabled: true, Threshold: 30 * time.Minute}, nil},
		{"false turns it off", map[string]string{contract.AnnotationEnabled: "false"}, Policy{Threshold: 30 * time.Minute}, nil},
		{"minutes may have decimals", minutes("0.5"), Policy{Enabled: true, Threshold: 30 * time.Second}, nil},
		{"a year is allowed", minutes("525600"), Policy{Enabled: true, Threshold: 525600 * time.Minute}, nil},
		{"a database may be named", map[string]string{contract.AnnotationDatabase: "orders"}, Policy{Threshold: 30 * time.Minute, Database: "orders", DatabaseSet: true}, nil},
		{"an empty database means none", map[string]string{contract.AnnotationDatabase: ""}, Policy{Threshold: 30 * time.Minute, DatabaseSet: true}, nil},
		{"annotations of others are passed over", map[string]string{"xata.io/other": "x", "cnpg.io/hibernation": "on"}, Policy{Threshold: 30 * time.Minute}, nil},
		{"what the parts write is passed over", map[string]string{contract.AnnotationAsleepSince: "x", contract.AnnotationGatewayReady: "y"}, Policy{Threshold: 30 * time.Minute}, nil},
		{"the ways of waking are known", map[string]string{contract.AnnotationWake: "manual", contract.AnnotationActivity: "connections"}, Policy{Threshold: 30 * time.Minute, Manual: true}, nil},
		{"a window may wake it", map[string]string{contract.AnnotationWake: "window"}, Policy{Threshold: 30 * time.Minute, Manual: true, OnWindow: true}, nil},
		{"a window and a connection", map[string]string{contract.AnnotationWake: "window, on-connect"}, Policy{Threshold: 30 * time.Minute, OnWindow: true}, nil},
		{"objects may wake it", map[string]string{contract.AnnotationWake: "objects"}, Policy{Threshold: 30 * time.Minute, Manual: true, OnObjects: true}, nil},
		{"all may", map[string]string{contract.AnnotationWake: "objects,on-connect, window,backup"}, Policy{Threshold: 30 * time.Minute, OnWindow: true, OnObjects: true, OnBackup: true}, nil},
		{"people alone, or others", map[string]string{contract.AnnotationWake: "manual,window"}, Policy{Threshold: 30 * time.Minute}, []string{contract.AnnotationWake}},
		{"the gateway's address may be accepted", map[string]string{contract.AnnotationGatewayAddress: "accept"}, Policy{Threshold: 30 * time.Minute, AcceptGateway: true}, nil},
		{"or not", map[string]string{contract.AnnotationGatewayAddress: "reject"}, Policy{Threshold: 30 * time.Minute}, nil},
		{"and nothing else", map[string]string{contract.AnnotationGatewayAddress: "yes"}, Policy{Threshold: 30 * time.Minute}, []string{contract.AnnotationGatewayAddress}},
		{"its Poolers may sleep with it", map[string]string{contract.AnnotationPoolers: "sleep"}, Policy{Threshold: 30 * time.Minute, PoolersSleep: true}, nil},
		{"or not", map[string]string{contract.AnnotationPoolers: "none"}, Policy{Threshold: 30 * time.Minute}, nil},
		{"and nothing else", map[string]string{contract.AnnotationPoolers: "stop"}, Policy{Threshold: 30 * time.Minute}, []string{contract.AnnotationPoolers}},
		{"how old its last Backup may become", map[string]string{contract.AnnotationBackupMaxAge: "7d"}, Policy{Threshold: 30 * time.Minute, OnObjects: true, BackupMaxAge: 7 * 24 * time.Hour}, nil},
		{"in hours", map[string]string{contract.AnnotationBackupMaxAge: "36h"}, Policy{Threshold: 30 * time.Minute, OnObjects: true, BackupMaxAge: 36 * time.Hour}, nil},
		{"or as old as it likes", map[string]string{contract.AnnotationBackupMaxAge: "none"}, Policy{Threshold: 30 * time.Minute, OnObjects: true, BackupAnyAge: true}, nil},
		{"but not less than an hour", map[string]string{contract.AnnotationBackupMaxAge: "30m"}, Policy{Threshold: 30 * time.Minute, OnObjects: true}, []string{contract.AnnotationBackupMaxAge}},
		{"when a new sidecar comes is the plugin's business", map[string]string{contract.AnnotationSidecarUpdate: contract.UpdateImmediate}, Policy{Threshold: 30 * time.Minute}, nil},
		{"but a mistake is a mistake", map[string]string{contract.AnnotationSidecarUpdate: "now"}, Policy{Threshold: 30 * time.Minute}, []string{contract.AnnotationSidecarUpdate}},
		{"statements instead of connections may count", map[string]string{contract.AnnotationActivity: "queries"}, Policy{Threshold: 30 * time.Minute, Queries: true}, nil},
		{"sessions may be ignored", map[string]string{contract.AnnotationIgnore: "user=a application=b*; client=10.1.2.3/8,database=d"}, Policy{Threshold: 30 * time.Minute, Ignore: []Pattern{
			{User: "a", Application: "b*"}, {Client: netip.MustParsePrefix("10.0.0.0/8")}, {Database: "d"},
		}}, nil},
		{"a single address may be ignored", map[string]string{contract.AnnotationIgnore: "client=fd00::1"}, Policy{Threshold: 30 * time.Minute, Ignore: []Pattern{
			{Client: netip.MustParsePrefix("fd00::1/128")},
		}}, nil},
		{"IPv4 in the form of IPv6 is IPv4", map[string]string{contract.AnnotationIgnore: "client=::ffff:10.0.0.1; client=::ffff:10.1.2.3/104; client=::ffff:0:0/90"}, Policy{Threshold: 30 * time.Minute, Ignore: []Pattern{
			{Client: netip.MustParsePrefix("10.0.0.1/32")}, {Client: netip.MustParsePrefix("10.0.0.0/8")}, {Client: netip.MustParsePrefix("::ffc0:0:0/90")},
		}}, nil},
		{"a time until which it stays awake may be seven days ahead", map[string]string{contract.AnnotationKeepAwakeUntil: "2026-03-08T00:00:00Z"}, Policy{Threshold: 30 * time.Minute, KeepAwakeUntil: midnight.AddDate(0, 0, 7)}, nil},
		{"it may not be further ahead", map[string]string{contract.AnnotationKeepAwakeUntil: "2026-03-08T00:00:01Z"}, Policy{Threshold: 30 * time.Minute}, []string{contract.AnnotationKeepAwakeUntil}},
		{"a wake may be asked for", map[string]string{contract.AnnotationWakeRequested: "2026-02-28T23:57:00Z"}, Policy{Threshold: 30 * time.Minute, WakeRequested: midnight.Add(-3 * time.Minute)}, nil},
		{"for five minutes", map[string]string{contract.AnnotationEnabled: "true", contract.AnnotationWakeRequested: "2026-02-28T23:54:59Z"}, Policy{Enabled: true, Threshold: 30 * time.Minute}, nil},
		{"not for later", map[string]string{contract.AnnotationWakeRequested: "2026-03-01T00:05:01Z"}, Policy{Threshold: 30 * time.Minute}, []string{contract.AnnotationWakeRequested}},
		{"sleep may be asked for", map[string]string{contract.AnnotationSleepRequested: "2026-02-28T23:57:00Z"}, Policy{Threshold: 30 * time.Minute, SleepRequested: midnight.Add(-3 * time.Minute)}, nil},
		{"five minutes later it still counts", map[string]string{contract.AnnotationSleepRequested: "2026-02-28T23:55:00Z"}, Policy{Threshold: 30 * time.Minute, SleepRequested: midnight.Add(-5 * time.Minute)}, nil},
		{"and then no longer, which is no mistake", map[string]string{contract.AnnotationEnabled: "true", contract.AnnotationSleepRequested: "2026-02-28T23:54:59Z"}, Policy{Enabled: true, Threshold: 30 * time.Minute}, nil},
		{"of a clock that is a little ahead it counts from now", map[string]string{contract.AnnotationSleepRequested: "2026-03-01T00:05:00Z"}, Policy{Threshold: 30 * time.Minute, SleepRequested: midnight}, nil},
		{"one from further ahead is a mistake", map[string]string{contract.AnnotationEnabled: "true", contract.AnnotationSleepRequested: "2026-03-01T00:05:01Z"}, Policy{Threshold: 30 * time.Minute}, []string{contract.AnnotationSleepRequested}},
		{"windows may be given", map[string]string{contract.AnnotationKeepAwake: "Mon-Wed,Sun 08:00-24:00 UTC"}, Policy{Threshold: 30 * time.Minute, KeepAwake: []Window{
			{Days: [7]bool{true, true, true, true}, From: 480, To: 1440, Zone: time.UTC},
		}}, nil},
		{"True is not true", map[string]string{contract.AnnotationEnabled: "True"}, Policy{Threshold: 30 * time.Minute}, []string{contract.AnnotationEnabled}},
		{"every problem is reported at once, sorted", map[string]string{contract.AnnotationEnabled: "yes", contract.AnnotationInactivityMinutes: "0", contract.AnnotationActivity: "transactions", contract.AnnotationIgnore: "usr=x", contract.Prefix + "inactivity-minute": "5"}, Policy{Threshold: 30 * time.Minute}, []string{contract.AnnotationActivity, contract.AnnotationEnabled, contract.AnnotationIgnore, contract.Prefix + "inactivity-minute", contract.AnnotationInactivityMinutes}},
		{"a problem elsewhere turns the feature off", map[string]string{contract.AnnotationEnabled: "true", contract.AnnotationWake: "maybe"}, Policy{Threshold: 30 * time.Minute}, []string{contract.AnnotationWake}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			got, problems := ParsePolicy(row.annotations, midnight)
			var bad []string
			for _, problem := range problems {
				bad = append(bad, problem.Key)
				for _, part := range []string{problem.Key, strconv.Quote(problem.Value), problem.Allowed} {
					if !strings.Contains(problem.String(), part) {
						t.Errorf("%q does not say %q", problem, part)
					}
				}
			}
			_, listed := row.annotations[contract.AnnotationWake]
			row.want.OnObjects = row.want.OnObjects || !listed || len(bad) != 0
			if diff := cmp.Diff(row.want, got, equal...); diff != "" {
				t.Errorf("policy (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(row.bad, bad); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
	for _, value := range []string{"", "0", "0.0", "-1", "+1", "1e3", "0x10", " 1", "1 ", "NaN", "Inf", "1.", ".5", "525600.1", "99999999999", "thirty", "1,5"} {
		if policy, problems := ParsePolicy(minutes(value), midnight); len(problems) != 1 || policy.Enabled {
			t.Errorf("minutes %q: %d problems, enabled %t", value, len(problems), policy.Enabled)
		}
	}
}

func TestUnderstoodFrom_isWhenATimeIsNearEnough(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule        string
		annotations map[string]string
		want        time.Time
	}{
		{"without problems there is nothing to wait for", map[string]string{contract.AnnotationEnabled: "true"}, time.Time{}},
		{"a time that lies too far ahead comes nearer", map[string]string{contract.AnnotationKeepAwakeUntil: "2026-03-09T06:00:00Z"}, midnight.Add(30 * time.Hour)},
		{"the last of several counts", map[string]string{contract.AnnotationKeepAwakeUntil: "2026-03-09T06:00:00Z", contract.AnnotationSleepRequested: "2026-03-03T00:05:00Z"}, midnight.Add(48 * time.Hour)},
		{"what is no time stays a mistake", map[string]string{contract.AnnotationKeepAwakeUntil: "tomorrow"}, time.Time{}},
		{"and so does anything else beside it", map[string]string{contract.AnnotationKeepAwakeUntil: "2026-03-09T06:00:00Z", contract.AnnotationActivity: "x"}, time.Time{}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			_, problems := ParsePolicy(row.annotations, midnight)
			got := UnderstoodFrom(problems)
			if !got.Equal(row.want) {
				t.Fatalf("got %s, want %s", got, row.want)
			}
			if _, left := ParsePolicy(row.annotations, got); !got.IsZero() && len(left) != 0 {
				t.Errorf("then there still are %v", left)
			}
		})
	}
}

// equal compares values without exported fields.
var equal = []cmp.Option{
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b *time.Location) bool { return a.String() == b.String() }),
}

func TestParsePolicy_refusesWhatIsNotUnderstood(t *testing.T) {
	t.Parallel()
	for key, values := range map[string][]string{
		contract.AnnotationIgnore: {"", " ", "user", "user=", "=x", "usr=x", "user=a user=b", "client=10.0.0.0/33", "client=host", "client=fe80::1%eth0", "a b c"},
		contract.AnnotationKeepAwake: {"", "Mon", "Mon 08:00-09:00", "mon 08:00-09:00 UTC", "Mon 8:00-9:00 UTC", "Mon 08:00-08:00 UTC", "Mon 24:00-01:00 UTC",
			"Mon 08:00-24:01 UTC", "Mon 08:00-29:00 UTC", "Mon 08:00-09:00 Local", "Mon 08:00-09:00 CET/Nowhere", "Mon- 08:00-09:00 UTC", "Mon 08:00-09:00 UTC;",
			"Mon 08:00-09:00 ../../etc/passwd"},
		contract.AnnotationSleepRequested: {"", "now", "true", "2026-03-01"},
		contract.AnnotationKeepAwakeUntil: {"", "tomorrow", "2026-03-01", "2026-03-01 10:00:00", "2026-13-01T00:00:00Z"},
	} {
		for _, value := range values {
			policy, problems := ParsePolicy(map[string]string{contract.AnnotationEnabled: "true", key: value}, midnight)
			if len(problems) != 1 || policy.Enabled || problems[0].Key != key {
				t.Errorf("%s=%q: problems %v, enabled %t", key, value, problems, policy.Enabled)
			}
		}
	}
}

func TestParsePolicy_loadsEachTimeZoneOnce(t *testing.T) {
	t.Parallel()
	annotations := map[string]string{contract.AnnotationKeepAwake: "Mon 08:00-18:00 Europe/Berlin; Tue 08:00-18:00 Europe/Berlin"}
	policy, problems := ParsePolicy(annotations, midnight)
	if len(problems) != 0 || policy.KeepAwake[0].Zone != policy.KeepAwake[1].Zone {
		t.Errorf("problems %v; the zones are not the same", problems)
	}
}

func TestWindow_opensAndCloses(t *testing.T) {
	t.Parallel()
	const berlin = "Mon-Fri 08:00-18:00 Europe/Berlin"
	for _, row := range []struct {
		rule, windows, now string
		inside             bool
		change             string
	}{
		{"before the beginning", berlin, "2026-03-02T06:59:59Z", false, "2026-03-02T07:00:00Z"},
		{"at the beginning", berlin, "2026-03-02T07:00:00Z", true, "2026-03-02T17:00:00Z"},
		{"at the end it is over", berlin, "2026-03-02T17:00:00Z", false, "2026-03-03T07:00:00Z"},
		{"from Friday to Monday, over the night in which summer time begins", berlin, "2026-03-27T17:00:00Z", false, "2026-03-30T06:00:00Z"},
		{"from Friday to Monday, over the night in which it ends", berlin, "2026-10-23T16:00:00Z", false, "2026-10-26T07:00:00Z"},
		{"over midnight it belongs to the day of its beginning", "Sat 22:00-02:00 UTC", "2026-03-08T01:00:00Z", true, "2026-03-08T02:00:00Z"},
		{"an hour that is skipped makes the window shorter", "Sun 01:00-04:00 Europe/Berlin", "2026-03-29T00:30:00Z", true, "2026-03-29T02:00:00Z"},
		{"an hour that comes twice makes it longer", "Sun 01:00-04:00 Europe/Berlin", "2026-10-25T02:30:00Z", true, "2026-10-25T03:00:00Z"},
		{"a beginning that is skipped is the change of the clocks", "Sun 02:30-05:00 Europe/Berlin", "2026-03-29T00:59:00Z", false, "2026-03-29T01:00:00Z"},
		{"what is left of a window whose beginning is skipped is inside", "Sun 02:30-03:30 Europe/Berlin", "2026-03-29T01:00:00Z", true, "2026-03-29T01:30:00Z"},
		{"an end that is skipped is the change of the clocks", "Sun 00:00-02:30 Europe/Berlin", "2026-03-29T00:59:00Z", true, "2026-03-29T01:00:00Z"},
		{"a window that is skipped is never open", "Sun 02:10-02:50 Europe/Berlin", "2026-03-29T01:00:00Z", false, "2026-04-05T00:10:00Z"},
		{"a beginning that is repeated is the first one", "Sun 02:00-04:00 Europe/Berlin", "2026-10-25T00:00:00Z", true, "2026-10-25T03:00:00Z"},
		{"an end that is repeated is the last one", "Sun 01:00-01:30 America/New_York", "2026-11-01T06:29:00Z", true, "2026-11-01T06:30:00Z"},
		{"a change of half an hour", "Sun 01:45-03:00 Australia/Lord_Howe", "2026-04-04T14:45:00Z", true, "2026-04-04T16:30:00Z"},
		{"of two windows the next change counts", berlin + "; Mon 06:30-06:45 UTC", "2026-03-02T06:00:00Z", false, "2026-03-02T06:30:00Z"},
		{"a whole week", "Mon-Sun 00:00-24:00 UTC", "2026-03-04T23:59:59Z", true, "2026-03-05T00:00:00Z"},
		{"once a week, just missed", "Wed 10:00-11:00 UTC", "2026-03-04T11:00:00Z", false, "2026-03-11T10:00:00Z"},
		{"days may go over the end of the week", "Fri-Mon 10:00-11:00 UTC", "2026-03-08T10:30:00Z", true, "2026-03-08T11:00:00Z"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			policy, problems := ParsePolicy(map[string]string{contract.AnnotationKeepAwake: row.windows}, midnight)
			if len(problems) != 0 {
				t.Fatal(problems)
			}
			now, err := time.Parse(time.RFC3339, row.now)
			if err != nil {
				t.Fatal(err)
			}
			inside, change := policy.inWindow(now)
			if got := change.UTC().Format(time.RFC3339); inside != row.inside || got != row.change {
				t.Errorf("inside %t until %s, want %t until %s", inside, got, row.inside, row.change)
			}
		})
	}
}

func TestPolicy_opensNextAfterTheDayThatSkipsIt(t *testing.T) {
	t.Parallel()
	policy, problems := ParsePolicy(map[string]string{contract.AnnotationKeepAwake: "Sun-Sat 02:15-02:45 Europe/Berlin"}, midnight)
	if len(problems) != 0 {
		t.Fatal(problems)
	}
	saturday, monday := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC), time.Date(2026, 3, 30, 0, 15, 0, 0, time.UTC)
	if next := policy.NextOpening(saturday); !next.Equal(monday) {
		t.Errorf("it opens at %s, want %s", next, monday)
	}
}

func TestPolicy_keepsAwakeBeforeAWindowThatWakes(t *testing.T) {
	t.Parallel()
	at := func(clock string) time.Time {
		t.Helper()
		now, err := time.Parse(time.RFC3339, "2026-03-02T"+clock+"Z")
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	for _, row := range []struct {
		rule, wake, now string
		inside          bool
		change          string
	}{
		{"not earlier than the plugin would wake it", "on-connect,window", "07:49:59", false, "07:50:00"},
		{"from then on", "on-connect,window", "07:50:00", true, "18:00:00"},
		{"until the window closes", "window", "17:59:59", true, "18:00:00"},
		{"a window that does not wake it forbids sleep while it is open", "on-connect", "07:59:59", false, "08:00:00"},
	} {
		policy, problems := ParsePolicy(map[string]string{contract.AnnotationKeepAwake: "Mon 08:00-18:00 UTC", contract.AnnotationWake: row.wake}, midnight)
		if len(problems) != 0 {
			t.Fatal(problems)
		}
		if inside, change := policy.inWindow(at(row.now)); inside != row.inside || !change.Equal(at(row.change)) {
			t.Errorf("%s: inside %t until %s, want %t until %s", row.rule, inside, change, row.inside, row.change)
		}
	}
}

func TestPolicy_saysWhatWakesIt(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"manual": "manual", "window": "window", "objects": "objects", "window , on-connect": "on-connect,window",
		"backup": "backup", "objects,backup,window,on-connect": "on-connect,window,objects,backup", "": "on-connect,objects",
	} {
		annotations := map[string]string{contract.AnnotationWake: value}
		if value == "" {
			annotations = nil
		}
		policy, problems := ParsePolicy(annotations, midnight)
		if got := policy.Wake(); got != want || len(problems) != 0 || policy.ByPeopleOnly() != (want == "manual") {
			t.Errorf("%q: %q, want %q; by people only: %t; %v", value, got, want, policy.ByPeopleOnly(), problems)
		}
	}
}

func TestPattern_matches(t *testing.T) {
	t.Parallel()
	address := netip.MustParseAddr("::ffff:10.1.2.3") // an IPv4 client on a dual-stack socket
	for _, row := range []struct {
		pattern        string
		matches, alone bool
	}{
		{"user=monitoring", true, false},
		{"user=monitor", false, false},
		{"user=mon*", true, false},
		{"user=*ing application=*og*ag*", true, false},
		{"user=*ing application=*og*ag*x", false, false},
		{"application=datadog*agent database=app", true, false},
		{"application=datadog*agent database=other", false, false},
		{"user=*", true, false},
		{"client=10.0.0.0/8", true, true},
		{"client=10.1.2.4", false, false},
		{"client=10.0.0.0/8 user=monitoring", true, false},
	} {
		patterns, err := parsePatterns(row.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := patterns[0].Matches("monitoring", "datadog-agent", "app", address); got != row.matches {
			t.Errorf("%q matches: %t, want %t", row.pattern, got, row.matches)
		}
		if got := patterns[0].MatchesUnseen(address); got != row.alone {
			t.Errorf("%q matches every session from there: %t, want %t", row.pattern, got, row.alone)
		}
		if patterns[0].Client.IsValid() && patterns[0].Matches("monitoring", "datadog-agent", "app", netip.Addr{}) {
			t.Errorf("%q matches a session over the Unix socket", row.pattern)
		}
	}
}

func FuzzParsePolicy(f *testing.F) {
	f.Add("true", "30", "connections", "user=x", "Mon-Fri 08:00-18:00 Europe/Berlin", "2026-03-02T00:00:00Z")
	f.Add("false", "0.5", "queries", "client=10.0.0.0/8, database=a*b", "Sat 22:00-02:00 UTC; Sun 00:00-24:00 UTC", "x")
	f.Fuzz(func(t *testing.T, enabled, minutes, activity, ignore, awake, until string) {
		policy, problems := ParsePolicy(map[string]string{
			contract.AnnotationEnabled: enabled, contract.AnnotationInactivityMinutes: minutes, contract.AnnotationActivity: activity, contract.AnnotationIgnore: ignore, contract.AnnotationKeepAwake: awake,
			contract.AnnotationKeepAwakeUntil: until, contract.AnnotationSleepRequested: until,
		}, midnight)
		if len(problems) != 0 && policy.Enabled {
			t.Error("a policy with problems is enabled")
		}
		if at := policy.SleepRequested; !at.IsZero() && (at.After(midnight) || at.Before(midnight.Add(-contract.MaxRequestAge))) {
			t.Errorf("%q asks for sleep at %s", until, at)
		}
		if policy.Threshold <= 0 {
			t.Errorf("the threshold is %s", policy.Threshold)
		}
		inside, change := policy.inWindow(midnight)
		if len(policy.KeepAwake) != 0 && !change.After(midnight) {
			t.Errorf("%q: inside %t, and the next change is %s", awake, inside, change)
		}
		for _, pattern := range policy.Ignore {
			pattern.Matches(enabled, minutes, activity, netip.Addr{})
		}
	})
}

// The package stays pure: no clock, no I/O, and only the standard library and the contract.
func TestPackage_importsNothingImpure(t *testing.T) {
	t.Parallel()
	allowed := []string{"encoding/json", "fmt", "github.com/cnpg-i/scale-to-zero/sidecar/contract", "maps", "net/netip", "regexp", "slices", "strconv", "strings", "time"}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range parsed.Imports {
			if path, _ := strconv.Unquote(spec.Path.Value); !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s", file, path)
			}
		}
	}
}
