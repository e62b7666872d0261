package activity

import (
	"testing"
	"time"
)

// remembers is the exporter's memory in these tests.
const remembers = 30 * time.Second

func TestAccount(t *testing.T) {
	t.Parallel()
	const none, doubt, use = FindingNone, FindingDoubt, FindingUse
	type look struct {
		after    int64 // seconds since the look before
		app      int64 // by how much the counter has risen
		doubtful int
		others   bool
		want     Finding
	}
	rest, wait := look{1, 0, 0, false, none}, look{1, 0, 0, false, doubt}
	// after is what comes after a burst of 15 has been seen twice.
	after := func(looks ...look) []look {
		burst := look{1, 15, 0, false, none}
		return append([]look{rest, rest, burst, rest, rest, burst, rest, rest}, looks...)
	}
	for _, row := range []struct {
		rule  string
		looks []look
	}{
		{"nothing that rose is nothing that logged in", []look{rest, {60, 0, 2, false, none}}},
		{"one that rose may be one that logged in", []look{rest, {60, 1, 1, false, use}}},
		{"before the first look nothing is known", []look{{1, 0, 1, false, use}}},
		{"a burst is waited for where none is known", []look{
			rest, {60, 30, 1, false, doubt}, wait, {13, 0, 0, false, doubt}, {1, 15, 0, false, doubt}, wait, rest,
		}},
		{"also where the server takes a break in a burst", []look{
			rest, {60, 30, 1, false, doubt}, wait, wait, {1, 9, 0, false, doubt}, wait, {1, 6, 0, false, doubt}, wait, rest,
		}},
		{"and shows that one login was one too many", []look{
			rest, {60, 31, 1, false, doubt}, wait, wait, {1, 15, 0, false, doubt}, wait, wait, {1, 15, 0, false, doubt}, wait, {1, 0, 0, false, use},
		}},
		{"it is not waited for for ever", []look{rest, {60, 30, 1, false, doubt}, wait, {149, 0, 0, false, use}}},
		{"a whole number of bursts explains a rise", after(look{60, 45, 1, false, doubt}, rest, look{5, 15, 1, false, doubt}, rest)},
		{"one more does not", after(look{60, 46, 1, false, doubt}, look{1, 0, 0, false, use})},
		{"nor does one less", after(look{60, 44, 1, false, doubt}, look{1, 0, 0, false, use})},
		{"nor does one without a burst", after(look{60, 1, 1, false, use})},
		{"nor do more than there can have been", after(look{60, 75, 1, false, doubt}, look{1, 0, 0, false, use})},
		{"half a burst waits for the rest", after(look{5, 7, 1, false, doubt}, look{1, 8, 0, false, doubt}, rest)},
		{"also when its beginning was before the session ended", after(look{5, 7, 0, false, none}, look{5, 8, 1, false, doubt}, rest)},
		{"and a login that ended within a burst is not taken for its end", after(look{5, 15, 1, false, doubt}, look{1, 1, 0, false, doubt}, look{1, 0, 0, false, use})},
		{"as many sessions in doubt as logins may be they", after(look{5, 15, 15, false, use})},
		{"also when their reports come a look late", after(look{5, 15, 0, false, none}, look{1, 0, 15, false, use})},
		{"two scrapes at once are told from one by the next", []look{
			rest, rest, {1, 30, 0, false, none}, rest, rest, {5, 15, 1, false, doubt}, wait, wait, {1, 15, 0, false, doubt}, rest, rest,
			{5, 15, 1, false, doubt}, rest,
		}},
		{"a single login over the socket is no burst", []look{rest, rest, {1, 1, 0, false, none}, rest, rest, {1, 1, 1, false, use}}},
		{"and a few at once do not explain many", []look{
			rest, {60, 16, 1, false, doubt}, wait, wait, {1, 2, 0, false, doubt}, wait, wait,
		}},
		{"a login that does not count is no part of a burst", []look{rest, rest, {1, 2, 0, true, none}, rest, rest, {1, 2, 1, false, doubt}, wait}},
		{"and nothing that has to be explained", after(look{5, 1, 0, true, none}, look{5, 15, 1, false, doubt}, rest)},
		{"what rises between looks that are far apart is no burst", []look{rest, rest, {60, 2, 0, false, none}, rest, rest, {1, 2, 1, false, doubt}, wait}},
		{"what rises while a session in doubt ends may be no burst", []look{
			rest, rest, {1, 15, 1, false, doubt}, wait, wait, {1, 15, 1, false, doubt}, wait, wait,
		}},
		{"nor may it when the report comes a look late", []look{rest, rest, {1, 16, 0, false, none}, {1, 0, 1, false, doubt}, wait, wait}},
		{"nor what goes on after a break", []look{
			rest, rest, {1, 15, 0, false, none}, rest, {1, 1, 1, false, use}, rest, rest, {60, 16, 1, false, doubt}, wait,
		}},
		{"not even when it is the same again", []look{
			rest, rest, {1, 15, 1, false, doubt}, wait, wait, {1, 0, 1, false, doubt}, {1, 15, 1, false, doubt}, wait, wait,
		}},
		{"a burst that has just been learned is kept though it explains not everything", []look{
			rest, {60, 16, 1, false, doubt}, wait, wait, {1, 15, 0, false, doubt}, wait, wait, {1, 15, 0, false, doubt}, wait, {1, 0, 0, false, use},
			{5, 15, 1, false, doubt}, rest,
		}},
		{"as many logins as sessions in doubt are no burst, however often", []look{
			rest, rest, {1, 2, 2, false, use}, rest, rest, {1, 0, 1, false, none}, {1, 2, 2, false, use}, rest, rest, {1, 2, 2, false, use},
		}},
		{"bursts that have become others are learned anew", after(
			look{5, 17, 1, false, doubt}, look{1, 0, 0, false, use}, rest, look{5, 17, 1, false, doubt}, wait, wait, look{1, 17, 0, false, doubt}, wait, rest)},
		{"as many sessions in doubt as logins in a burst may hide in another one", after(look{5, 30, 15, false, doubt}, look{1, 0, 0, false, use})},
		{"a counter that was set back explains nothing", after(look{5, -3, 1, false, use}, look{1, 0, 1, false, none})},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			var account Account
			at, app := time.Unix(0, 0), int64(100)
			for i, look := range row.looks {
				at, app = at.Add(time.Duration(look.after)*time.Second), app+look.app
				ledger := Ledger{"app": {Sessions: app}, maintenanceDatabase: {Sessions: at.Unix() / 10}}
				if got := account.Take(Look{Ledger: ledger, At: at, Doubtful: look.doubtful, Others: look.others, Remembers: remembers}); got != look.want {
					t.Fatalf("look %d: %v, want %v", i, got, look.want)
				}
			}
		})
	}
}

// As seen on a cluster whose exporter, which remembers for thirty seconds, is scraped every fifteen, while somebody knocks every
// five with pg_isready and a wrong password over TLS.
func TestAccountOfKnocksBesideScrapes(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule  string
		every int // seconds between bursts
		phase int // between a knock and a burst
	}{
		{"bursts between knocks, every thirty seconds", 30, 2},
		{"every forty-five seconds, by when there were more knocks than logins in a burst", 45, 2},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			var account Account
			app, knocks, due := int64(3), 0, 0
			doubted := 0
			for second := range 1800 {
				if second%row.every == 5+row.phase {
					app += 15
				}
				if second%5 == 0 {
					knocks += 2
					due = min(due, second)
				}
				if second < due {
					continue
				}
				due = second + 60
				switch account.Take(Look{Ledger: Ledger{"app": {Sessions: app}}, At: time.Unix(int64(second), 0), Doubtful: knocks, Remembers: remembers}) {
				case FindingUse:
					if second > 0 {
						t.Errorf("a use after %d s", second)
					}
				case FindingDoubt:
					doubted++
					due = second + 1
				default:
				}
				knocks = 0
			}
			if doubted > 3*row.every {
				t.Errorf("%d s in doubt", doubted)
			}
		})
	}
}

func TestAccountOfSeveralDatabases(t *testing.T) {
	t.Parallel()
	var account Account
	at := time.Unix(0, 0)
	take := func(a, b int64, doubtful int) Finding {
		at = at.Add(time.Second)
		return account.Take(Look{Ledger: Ledger{"a": {Sessions: a}, "b": {Sessions: b}}, At: at, Doubtful: doubtful, Remembers: remembers})
	}
	for range 2 {
		take(0, 0, 0)
	}
	for range 3 {
		take(15, 2, 0)
	}
	for range 3 {
		take(30, 4, 0)
	}
	take(45, 6, 1)
	if got := take(45, 6, 0); got != FindingNone {
		t.Errorf("a burst in both: %v", got)
	}
	for _, row := range []struct {
		rule string
		a, b int64
		want bool
	}{
		{"nothing needs no explanation", 45, 6, true},
		{"a burst explains itself", 60, 8, true},
		{"and nothing beside it", 61, 8, false},
		{"nor a part of it", 60, 6, false},
	} {
		before, after := Ledger{"a": {Sessions: 45}, "b": {Sessions: 6}}, Ledger{"a": {Sessions: row.a}, "b": {Sessions: row.b}}
		if got := account.Explains(before, after, time.Second, remembers); got != row.want {
			t.Errorf("%s: %v", row.rule, got)
		}
	}
	account.Restart(Ledger{"a": {Sessions: 50}, "b": {Sessions: 7}}, at)
	take(65, 9, 1)
	if got := take(65, 9, 0); got != FindingNone {
		t.Errorf("a burst after a known use: %v", got)
	}
	take(80, 9, 1)
	if got := take(80, 9, 0); got != FindingUse {
		t.Errorf("a burst in one database only: %v", got)
	}
}
