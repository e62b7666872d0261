package activity

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// server is one of which the counters of sessions are looked at: the exporter is scraped, somebody knocks every five seconds with a
// wrong password over TLS, and clients log in whose sessions end as such knocks do.
type server struct {
	random   *rand.Rand
	now      time.Time
	sessions int64
	// clients is how many log in at once, and every after how long again; zero: at random.
	clients int
	every   time.Duration

	scraped, scrape, knock, login time.Time
	scrapes                       time.Duration
}

const burstSize = 15

// ask has the exporter scraped, which logs in unless it remembers.
func (s *server) ask() {
	if s.now.Sub(s.scraped) > remembers {
		s.scraped, s.sessions = s.now, s.sessions+burstSize
	}
}

// live lets time pass and returns how many sessions ended that may have been logins, and how many of them were.
func (s *server) live(until time.Time) (ended, logins int) {
	s.now = until
	for ; !s.now.Before(s.scrape); s.scrape = s.scrape.Add(s.scrapes) {
		s.ask()
	}
	for ; !s.now.Before(s.knock); s.knock = s.knock.Add(5 * time.Second) {
		ended++
	}
	for !s.now.Before(s.login) {
		s.sessions += int64(s.clients)
		logins += s.clients
		pause := s.every
		if pause == 0 {
			pause = time.Duration(5+s.random.IntN(120)) * time.Second
		}
		s.login = s.login.Add(pause)
	}
	return ended + logins, logins
}

// A login that ended unseen is never explained by what the exporter does, whenever all of it happens.
func TestNoLoginIsExplainedAway(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule    string
		clients int
		regular bool
		alike   bool // the knocks are known to be alike
	}{
		{"a client that comes at random", 1, false, false},
		{"a client that comes at regular times", 1, true, false},
		{"as many at once as the exporter logs in", burstSize, false, false},
		{"as many at once, at regular times", burstSize, true, false},
		{"a client that comes at random beside knocks that are alike", 1, false, true},
		{"one that comes at regular times", 1, true, true},
		{"as many beside knocks that are alike as the exporter logs in", burstSize, false, true},
		{"as many, at regular times", burstSize, true, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(200) {
				random := rand.New(rand.NewPCG(seed, 0))
				begun := time.Unix(1000, 0)
				within := func(seconds int) time.Time { return begun.Add(time.Duration(random.IntN(seconds)) * time.Second) }
				s := &server{
					random: random, now: begun, clients: row.clients, sessions: 100, scrapes: time.Duration(15*(1+random.IntN(4))) * time.Second,
					scrape: within(30), knock: within(5), login: within(60),
				}
				if row.regular {
					s.every = time.Duration(20+random.IntN(100)) * time.Second
				}
				if story := s.watch(row.alike); story != "" {
					t.Fatalf("seed %d: %s", seed, story)
				}
			}
		})
	}
}

// watch looks as the sidecar does, and tells how a login was explained away.
func (s *server) watch(alike bool) string {
	var account Account
	story, finding, pending := "", FindingNone, 0
	for range 300 {
		next := s.now.Add(time.Second)
		if finding != FindingDoubt && !account.Rising() {
			for _, event := range []time.Time{s.knock, s.login} {
				if event.After(next) && event.Before(s.now.Add(time.Minute)) {
					next = event
					break
				}
			}
		}
		waited := next.Sub(s.now)
		ended, logins := s.live(next)
		pending += logins
		look := Look{Ledger: Ledger{"app": {Sessions: s.sessions}}, At: s.now, Doubtful: ended, Remembers: remembers}
		if alike {
			look.Alike = ended - logins
		}
		finding = account.Take(look)
		story += fmt.Sprintf("\nafter %s: %d sessions so far, %d ended, %d of them logins: %s", waited, s.sessions, ended, logins, finding)
		switch {
		case finding == FindingUse:
			pending = 0
		case finding == FindingNone && pending != 0:
			return story
		}
		if account.Curious() {
			s.ask()
		}
	}
	return ""
}
