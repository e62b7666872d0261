package doze

import (
	"testing"
	"time"
)

func TestStopped(t *testing.T) {
	t.Parallel()
	type observed struct {
		found          Postmaster
		tried, refused bool
	}
	for _, row := range []struct {
		rule     string
		observed []observed
		over     bool
	}{
		{"no lock file", []observed{{found: none}}, true},
		{"a postmaster that runs", []observed{{found: first}, {first, true, false}}, false},
		{"one refused connection may be a start", []observed{{first, true, true}, {found: first}}, false},
		{"two refused connections in a row: it was killed", []observed{{first, true, true}, {found: first}, {first, true, true}}, true},
		{"an accepted one between them", []observed{{first, true, true}, {first, true, false}, {first, true, true}}, false},
		{"of two postmasters", []observed{{first, true, true}, {second, true, true}}, false},
		{"another postmaster is no stop", []observed{{found: first}, {found: second}}, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			var rule stoppedRule
			for i, seen := range row.observed {
				var over bool
				if rule, over = rule.observe(seen.found, seen.tried, seen.refused); over != (row.over && i == len(row.observed)-1) {
					t.Errorf("%d: over %t", i, over)
				}
			}
		})
	}
}

func TestAbsent(t *testing.T) {
	t.Parallel()
	type observed struct {
		at      time.Duration
		found   Postmaster
		unknown bool
		refused bool
	}
	for _, row := range []struct {
		rule     string
		observed []observed
		over     bool
	}{
		{"none for a minute", []observed{{at: 0}, {at: 59 * time.Second}, {at: 60 * time.Second}}, true},
		{"one that ran meanwhile was a try", []observed{{at: 0}, {at: 59 * time.Second, found: first}, {at: 60 * time.Second}, {at: 118 * time.Second}}, false},
		{"after which a minute counts again", []observed{{at: 59 * time.Second, found: first}, {at: 60 * time.Second}, {at: 119 * time.Second}}, true},
		{"one that recovers runs", []observed{{at: 0, found: first}, {at: time.Hour, found: first}}, false},
		{"what is not known is no absence", []observed{{at: 0}, {at: 30 * time.Second, unknown: true}, {at: 89 * time.Second}}, false},
		{"one that was killed left its lock", []observed{
			{at: 0, found: first, refused: true}, {at: time.Second, found: first, refused: true}, {at: 60 * time.Second, found: first, refused: true},
		}, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			begun := time.Now()
			rule := startFailedRule{since: begun}
			for i, seen := range row.observed {
				var over bool
				if rule, over = rule.observe(seen.found, !seen.unknown, seen.refused, begun.Add(seen.at)); over != (row.over && i == len(row.observed)-1) {
					t.Errorf("%d: over %t", i, over)
				}
			}
		})
	}
}

func TestServing_isAnotherPostmasterOrOneThatIsProvenToStay(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	at := func(seconds float64) time.Time { return begun.Add(time.Duration(seconds * float64(time.Second))) }
	calm := func(asked float64) managerAnswer {
		return managerAnswer{asked: at(asked), answered: at(asked + 0.1), known: true, accepts: true}
	}
	unknownAt := func(asked float64) managerAnswer {
		a := calm(asked)
		a.known = false
		return a
	}
	stopping, unknown, refusing := calm(3), unknownAt(3), calm(3)
	stopping.stopping, refusing.accepts = true, false
	for _, row := range []struct {
		rule    string
		found   []Postmaster
		answers []managerAnswer
		gone    bool
		stays   bool
	}{
		{"the same", []Postmaster{first}, nil, false, false},
		{"none", []Postmaster{first, none}, nil, true, false},
		{"another", []Postmaster{second}, nil, true, false},
		{"gone is gone, whoever runs", []Postmaster{none, first}, nil, true, false},
		{"the same, and the manager is calm", []Postmaster{first}, []managerAnswer{calm(0), calm(3), calm(25.1)}, false, true},
		{"the time counts from the first answer to the last question", []Postmaster{first}, []managerAnswer{calm(0), calm(25.05)}, false, false},
		{"stopping in between", []Postmaster{first}, []managerAnswer{calm(0), stopping, calm(25.1), calm(28)}, false, false},
		{"unknown in between", []Postmaster{first}, []managerAnswer{calm(0), unknown, calm(25.1), calm(28)}, false, false},
		{"not accepting in between", []Postmaster{first}, []managerAnswer{calm(0), refusing, calm(25.1), calm(28)}, false, false},
		{"calm again for long enough", []Postmaster{first}, []managerAnswer{calm(0), stopping, calm(4), calm(29.1)}, false, true},
		{"unknown for long", []Postmaster{first}, []managerAnswer{unknownAt(0), unknownAt(60), unknownAt(120.05), unknownAt(120.2)}, false, true},
		{"calm and unknown in turn, for long", []Postmaster{first}, []managerAnswer{calm(0), unknownAt(5), calm(10), unknownAt(15), unknownAt(121)}, false, true},
		{"stopping during that", []Postmaster{first}, []managerAnswer{unknownAt(0), stopping, unknownAt(4), unknownAt(121)}, false, false},
		{"not accepting during that", []Postmaster{first}, []managerAnswer{unknownAt(0), refusing, unknownAt(4), unknownAt(121)}, false, false},
		{"calm of another", []Postmaster{second}, []managerAnswer{calm(0), calm(26)}, true, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			rule := newServingRule(first)
			for _, found := range row.found {
				rule = rule.observePostmaster(found)
			}
			stays := false
			for _, a := range row.answers {
				if stays {
					t.Fatalf("it stays before the answer at %s", a.asked.Sub(begun))
				}
				rule, stays = rule.observeManager(a)
			}
			if rule.gone != row.gone || stays != row.stays {
				t.Errorf("gone %t, stays %t", rule.gone, stays)
			}
		})
	}
	if !newServingRule(none).gone {
		t.Error("whoever is known to have stopped is not gone")
	}
}
