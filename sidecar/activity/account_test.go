package activity

import (
	"testing"
	"time"
)

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
	// A burst of 15 that is learned from looks a second apart.
	learned := []look{
		{1, 0, 0, false, none}, {1, 0, 0, false, none}, {1, 15, 0, false, none}, {1, 0, 0, false, none}, {1, 0, 0, false, none},
		{1, 15, 0, false, none}, {1, 0, 0, false, none}, {1, 0, 0, false, none},
	}
	for _, row := range []struct {
		rule  string
		looks []look
	}{
		{"nothing that rose is nothing that logged in", []look{{1, 0, 0, false, none}, {60, 0, 2, false, none}}},
		{"one that rose may be one that logged in", []look{{1, 0, 0, false, none}, {60, 1, 1, false, use}}},
		{"before the first look nothing is known", []look{{1, 0, 1, false, use}}},
		{"a burst is waited for where none is known", []look{
			{1, 0, 0, false, none}, {60, 30, 1, false, doubt}, {1, 0, 0, false, doubt}, {13, 0, 0, false, doubt},
			{1, 15, 0, false, doubt}, {1, 0, 0, false, doubt}, {1, 0, 0, false, none},
		}},
		{"also where the server takes a break in a burst", []look{
			{1, 0, 0, false, none}, {60, 30, 1, false, doubt}, {1, 0, 0, false, doubt}, {1, 9, 0, false, doubt}, {1, 0, 0, false, doubt},
			{1, 6, 0, false, doubt}, {1, 0, 0, false, doubt}, {1, 0, 0, false, none},
		}},
		{"and shows that one login was one too many", []look{
			{1, 0, 0, false, none}, {60, 31, 1, false, doubt}, {1, 0, 0, false, doubt}, {1, 15, 0, false, doubt}, {1, 0, 0, false, doubt}, {1, 0, 0, false, doubt},
			{1, 15, 0, false, doubt}, {1, 0, 0, false, doubt}, {1, 0, 0, false, use},
		}},
		{"it is not waited for for ever", []look{
			{1, 0, 0, false, none}, {60, 30, 1, false, doubt}, {1, 0, 0, false, doubt}, {149, 0, 0, false, use},
		}},
		{"a whole number of bursts explains a rise", append(learned[:8:8], look{60, 45, 1, false, none}, look{5, 15, 1, false, none})},
		{"one more does not", append(learned[:8:8], look{60, 46, 1, false, doubt}, look{1, 0, 0, false, use})},
		{"nor does one less", append(learned[:8:8], look{60, 44, 1, false, doubt}, look{1, 0, 0, false, use})},
		{"nor does one without a burst", append(learned[:8:8], look{60, 1, 1, false, use})},
		{"half a burst waits for the rest", append(learned[:8:8], look{5, 7, 1, false, doubt}, look{1, 8, 0, false, none})},
		{"also when its beginning was before the session ended", append(learned[:8:8], look{5, 7, 0, false, none}, look{5, 8, 1, false, none})},
		{"two scrapes at once are told from one by the next", []look{
			{1, 0, 0, false, none}, {1, 0, 0, false, none}, {1, 30, 0, false, none}, {1, 0, 0, false, none}, {1, 0, 0, false, none},
			{5, 15, 1, false, doubt}, {1, 0, 0, false, doubt}, {1, 15, 0, false, none}, {1, 0, 0, false, none}, {1, 0, 0, false, none},
			{5, 45, 1, false, none},
		}},
		{"a single login over the socket is no burst", []look{
			{1, 0, 0, false, none}, {1, 0, 0, false, none}, {1, 1, 0, false, none}, {1, 0, 0, false, none}, {1, 1, 1, false, use},
		}},
		{"a login that does not count is no part of a burst", []look{
			{1, 0, 0, false, none}, {1, 0, 0, false, none}, {1, 1, 0, true, none}, {1, 0, 0, false, none}, {1, 1, 1, false, use},
		}},
		{"and nothing that has to be explained", append(learned[:8:8], look{5, 1, 0, true, none}, look{5, 15, 1, false, none})},
		{"what rises between looks that are far apart is no burst", []look{
			{1, 0, 0, false, none}, {1, 0, 0, false, none}, {60, 1, 0, false, none}, {1, 0, 0, false, none}, {1, 1, 1, false, use},
		}},
		{"what rises while a session in doubt ends may be no burst", []look{
			{1, 0, 0, false, none}, {1, 0, 0, false, none}, {1, 15, 1, false, doubt}, {1, 0, 0, false, doubt}, {1, 15, 1, false, doubt}, {1, 0, 0, false, doubt},
		}},
		{"it is one when sessions in doubt end in between without a rise", []look{
			{1, 0, 0, false, none}, {1, 0, 0, false, none}, {1, 15, 1, false, doubt}, {1, 0, 0, false, doubt}, {1, 0, 1, false, doubt},
			{1, 15, 1, false, doubt}, {1, 0, 0, false, doubt}, {1, 0, 0, false, none},
		}},
		{"and when it is the same again", []look{
			{1, 0, 0, false, none}, {1, 0, 0, false, none}, {1, 15, 1, false, doubt}, {1, 0, 0, false, doubt}, {1, 0, 1, false, doubt},
			{1, 16, 1, false, doubt}, {1, 0, 0, false, doubt}, {1, 0, 0, false, doubt},
		}},
		{"a burst that has just been learned is kept though it explains not everything", []look{
			{1, 0, 0, false, none}, {60, 16, 1, false, doubt}, {1, 0, 0, false, doubt}, {1, 15, 0, false, doubt}, {1, 0, 0, false, doubt}, {1, 0, 0, false, doubt},
			{1, 15, 0, false, doubt}, {1, 0, 0, false, doubt}, {1, 0, 0, false, use},
			{5, 15, 1, false, none},
		}},
		{"as many logins as sessions in doubt are no burst, however often", []look{
			{1, 0, 0, false, none}, {1, 0, 0, false, none}, {1, 2, 2, false, use}, {1, 0, 0, false, none}, {1, 0, 0, false, none}, {1, 0, 1, false, none},
			{1, 2, 2, false, use}, {1, 0, 0, false, none}, {1, 0, 0, false, none}, {1, 2, 2, false, use},
		}},
		{"bursts that have become others are learned anew", append(learned[:8:8],
			look{5, 17, 1, false, doubt}, look{1, 0, 0, false, use}, look{5, 17, 1, false, doubt}, look{1, 0, 0, false, doubt},
			look{1, 17, 0, false, doubt}, look{1, 0, 0, false, doubt}, look{1, 0, 0, false, none})},
		{"a counter that was set back explains nothing", append(learned[:8:8], look{5, -3, 1, false, use}, look{1, 0, 1, false, none})},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			var account Account
			at, app := time.Unix(0, 0), int64(100)
			for i, look := range row.looks {
				at, app = at.Add(time.Duration(look.after)*time.Second), app+look.app
				ledger := Ledger{"app": {Sessions: app}, maintenanceDatabase: {Sessions: at.Unix() / 10}}
				if got := account.Take(ledger, at, look.doubtful, look.others); got != look.want {
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
		{"at a knock", 30, 0},
		{"every forty-five seconds, by when there were more knocks than logins in a burst", 45, 2},
		{"the same at a knock", 45, 0},
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
				switch account.Take(Ledger{"app": {Sessions: app}}, time.Unix(int64(second), 0), knocks, false) {
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
		return account.Take(Ledger{"a": {Sessions: a}, "b": {Sessions: b}}, at, doubtful, false)
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
	if got := take(45, 6, 1); got != FindingNone {
		t.Errorf("two bursts: %v", got)
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
		if got := account.Explains(Ledger{"a": {Sessions: 45}, "b": {Sessions: 6}}, Ledger{"a": {Sessions: row.a}, "b": {Sessions: row.b}}); got != row.want {
			t.Errorf("%s: %v", row.rule, got)
		}
	}
	account.Restart(Ledger{"a": {Sessions: 50}, "b": {Sessions: 7}}, at)
	if got := take(65, 9, 1); got != FindingNone {
		t.Errorf("a burst after a known use: %v", got)
	}
	take(80, 9, 1)
	if got := take(80, 9, 0); got != FindingUse {
		t.Errorf("a burst in one database only: %v", got)
	}
}
