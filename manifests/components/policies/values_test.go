package policies

import (
	"strings"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// parsedAt is when the values are parsed and written; some may only be so far ahead.
var parsedAt = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// verdict is how a value is treated.
type verdict int

// The verdicts.
const (
	// good is accepted.
	good verdict = iota
	// bad is rejected by all.
	bad
	// late is rejected only by users of the parser: the admission policy's expressions cannot detect it.
	late
)

// annotationRule says how the values of an annotation are treated.
type annotationRule struct {
	Key     string
	Verdict verdict
	Values  []string
}

// rules is the table of the annotations' valid and invalid values. Everything that parses or rejects them is tested with it: the
// sidecar's parser and the admission policy.
var rules = []annotationRule{
	{contract.AnnotationEnabled, good, []string{"true", "false", "observe"}},
	{contract.AnnotationEnabled, bad, []string{"", "yes", "True", "1", "true ", `"true"`, "tru\\e", "a\nb\tc", "größer"}},
	{contract.AnnotationInactivityMinutes, good, []string{"30", "0.5", "1", "525600", "525600.0", "0.000000001", "007", "000000001.0"}},
	{contract.AnnotationInactivityMinutes, bad, []string{"", "0", "0.0", "-1", "+1", "1e3", "0x10", " 1", "1 ", "1\n", "NaN", "Inf", "1.", ".5", "525600.1", "525601", "99999999999", "0000000001", "1.0000000000", "thirty", "1,5", "٣"}},
	{contract.AnnotationDozeMinutes, good, []string{"none", "0.5", "5", "29.9", "29.999999999", "000000.50"}},
	{contract.AnnotationDozeMinutes, bad, []string{"", "None", "0", "0.4", "0.499999999", "30", "30.0", "525600", "525601", "-5", "+5", "1e1", " 5", "5.", ".5", "five", "5;"}},
	{contract.AnnotationActivity, good, []string{"connections", "queries"}},
	{contract.AnnotationActivity, bad, []string{"", "transactions", "Queries", "queries,connections"}},
	{contract.AnnotationWake, good, []string{"on-connect", "manual", "window", "on-connect,window", "window, on-connect", "window , window", "objects", "on-connect,objects", "objects, window,on-connect", "backup", "on-connect , backup,objects"}},
	{contract.AnnotationWake, bad, []string{"", "maybe", "onconnect", "manual;", "manual,window", "window,", ",window", "window;on-connect", " window", "window ", "on-connect\t,window", "windows", "object", "manual,objects", "backups", "backup,manual"}},
	{contract.AnnotationGatewayAddress, good, []string{"accept", "reject"}},
	{contract.AnnotationGatewayAddress, bad, []string{"", "yes", "Accept"}},
	{contract.AnnotationSidecarUpdate, good, []string{"on-restart", "immediate"}},
	{contract.AnnotationSidecarUpdate, bad, []string{"", "now", "Immediate", "on-restart "}},
	{contract.AnnotationPoolers, good, []string{"sleep", "none"}},
	{contract.AnnotationPoolers, bad, []string{"", "true", "Sleep", "sleep "}},
	{contract.AnnotationBackupMaxAge, good, []string{"none", "1h", "36h", "8760h", "1d", "7d", "365d"}},
	{contract.AnnotationBackupMaxAge, bad, []string{"", "None", "0h", "0d", "7", "7 d", " 7d", "7d ", "07d", "-7d", "1.5d", "30m", "1w", "8761h", "366d", "9999d", "99999h", "7D", "7d12h"}},
	{contract.AnnotationDatabase, good, []string{"", "orders", "Any Name", "ü;--"}},
	{contract.AnnotationIgnore, good, []string{
		"none", "user=monitoring application=datadog*; client=192.0.2.10", "user=a,user=b;;", " user=a\tdatabase=b ", "application=a=b", "user=user=x",
		"client=10.1.2.3", "client=0.0.0.0/0", "client=fd00::1", "client=::/0", "client=::ffff:10.0.0.1", "client=fd00::/64 user=x*",
		"\u00a0user=a\u2003database=b\u3000", "user=a\vdatabase=b\u0085", many("user=a", 64),
	}},
	{contract.AnnotationIgnore, bad, []string{
		"", ";", " ", "none ", "none;user=a", "user", "user=", "usr=x", "=x", "user=a user=b", "client=10.0.0.1 user=a client=10.0.0.2", "user=a; ;user=b", "client=10.0.0",
		"client=10.0.0.256", "client=10.0.0.01", "client=10.0.0.0/33", "client=10.0.0.0/08", "client=host.example.org", "client=fd00::/129",
		"client=fe80::1%eth0", "User=a", "user=a database", "user=a\u00a0user=b", "user=a\u2003x", many("user=a", 65),
	}},
	{contract.AnnotationIgnore, late, []string{"client=:::", "client=1:2", "client=::1.2.3", "client=12345::"}},
	{contract.AnnotationKeepAwake, good, []string{
		"none", "Mon-Fri 08:00-18:00 Europe/Berlin; Sat 10:00-12:00 UTC", "Sun 00:00-24:00 UTC", "Sat,Mon-Wed 22:00-06:00 America/Port-au-Prince",
		" Fri-Mon  23:59-00:00   Etc/GMT+1 ", "Mon 08:00-09:00 UTC;\tTue 08:00-09:00 UTC\u00a0", many("Mon 08:00-09:00 UTC", 64),
	}},
	{contract.AnnotationKeepAwake, bad, []string{
		"", ";", "NONE", "none;none", "Mon", "Mon 08:00-09:00", "mon 08:00-09:00 UTC", "Mon- 08:00-09:00 UTC", "Mon, 08:00-09:00 UTC", "Mon-Tue-Wed 08:00-09:00 UTC",
		"Mon 8:00-09:00 UTC", "Mon 08:00-24:01 UTC", "Mon 25:00-26:00 UTC", "Mon 24:00-08:00 UTC", "Mon 08:60-09:00 UTC", "Mon 08:00-08:00 UTC",
		"Mon 08:00-09:00 Local", "Mon 08:00-09:00 UTC;", "Mon\t08:00-09:00 UTC", "Mon 08:00 - 09:00 UTC", "Mon 08:00-09:00 Europe/Zürich",
		many("Mon 08:00-09:00 UTC", 65),
	}},
	{contract.AnnotationKeepAwake, late, []string{"Mon 08:00-09:00 Europe/Bern", "Mon 08:00-09:00 ../UTC", "Mon 08:00-09:00 CET+1"}},
	{contract.AnnotationKeepAwakeUntil, good, []string{
		"2026-03-01T18:00:00Z", "2026-03-01T18:00:00.5+01:00", "2024-02-29T00:00:00Z", "2000-02-29T23:59:59-12:30", "0000-01-01T00:00:00Z",
		// Go's parser accepts these too.
		"2026-03-01T8:00:00Z", "2026-03-01T18:00:00,5Z", "2026-03-01T18:00:00+24:60",
	}},
	{contract.AnnotationKeepAwakeUntil, bad, []string{
		"", "tomorrow", "2026-03-01", "2026-03-01 18:00:00Z", "2026-03-01T18:00Z", "2026-03-01T18:00:00", "2026-03-01T18:00:00z", "2026-03-01t18:00:00Z",
		"2026-3-01T18:00:00Z", "2026-13-01T18:00:00Z", "2026-00-01T18:00:00Z", "2026-04-31T18:00:00Z", "2026-01-00T18:00:00Z", "2025-02-29T00:00:00Z",
		"1900-02-29T00:00:00Z", "2026-03-01T24:00:00Z", "2026-03-01T18:60:00Z", "2026-03-01T18:00:60Z", "2026-03-01T18:00:00.Z",
		"2026-03-01T18:00:00+25:00", "2026-03-01T18:00:00+01:61", "2026-03-01T18:00:00+0100", " 2026-03-01T18:00:00Z", "2026-03-01T18:00:00Z\n",
	}},
	{contract.AnnotationKeepAwakeUntil, late, []string{"2026-03-08T00:00:01Z", "9999-12-31T23:59:59Z"}},
	{contract.AnnotationSleepRequested, good, []string{"2026-03-01T00:00:00Z", "2026-03-01T01:05:00+01:00", "2020-02-29T00:00:00Z"}},
	{contract.AnnotationSleepRequested, bad, []string{"", "now", "true", "2026-03-01", "2026-03-01T00:00:00", "2026-02-29T00:00:00Z", "2026-03-01T00:00:00Z "}},
	{contract.AnnotationSleepRequested, late, []string{"2026-03-01T00:05:01Z", "9999-12-31T23:59:59Z"}},
	{contract.AnnotationWakeRequested, good, []string{"2026-03-01T00:00:00Z", "2026-03-01T01:05:00+01:00", "2020-02-29T00:00:00Z"}},
	{contract.AnnotationWakeRequested, bad, []string{"", "now", "true", "2026-03-01", "2026-03-01T00:00:00", "2026-02-29T00:00:00Z", "2026-03-01T00:00:00Z "}},
	{contract.AnnotationWakeRequested, late, []string{"2026-03-01T00:05:01Z", "9999-12-31T23:59:59Z"}},
	{contract.AnnotationAnnounced, good, []string{"", "x"}},
	{contract.AnnotationGatewayReady, good, []string{"x"}},
	{contract.AnnotationAsleepSince, good, []string{"x"}},
	{contract.AnnotationAsleepReason, good, []string{"x"}},
	{contract.AnnotationLastWake, good, []string{"x"}},
	{contract.AnnotationUnroutableServices, good, []string{"x"}},
	{contract.AnnotationSuspended, good, []string{"x"}},
	{contract.AnnotationInstances, good, []string{"x"}},
	{"xata.io/other", good, []string{"x"}},
	{"xata.io/scale-to-zero", good, []string{"x"}},
	{contract.Prefix + "inactivity-minute", bad, []string{"5", ""}},
	{contract.Prefix + "Enabled", bad, []string{"true"}},
}

func many(item string, count int) string {
	return strings.TrimSuffix(strings.Repeat(item+";", count), ";")
}
