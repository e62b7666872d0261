package endpoint

import (
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// How many requests a replica answers each second and at once: of one source address or user, and in total. Each asks
// the API server two to four times.
const (
	oneRate, oneBurst = 10, 50
	allRate, allBurst = 20, 100
	// mostKept is the number of limiters in a map at which those that have refilled are removed.
	mostKept = 1024
)

// limits bound the rate of requests. An address is limited before the API server reviews the token, so that an
// unauthenticated client at one address cannot use up the total; clients at several addresses can.
type limits struct {
	mutex          sync.Mutex
	sources, users map[string]*rate.Limiter
	all            *rate.Limiter
}

func newLimits() *limits {
	return &limits{
		sources: map[string]*rate.Limiter{}, users: map[string]*rate.Limiter{}, all: rate.NewLimiter(allRate, allBurst),
	}
}

// ofSource takes a request from what the source and all together may make, and returns how long to wait if it cannot.
func (l *limits) ofSource(source string, now time.Time) time.Duration {
	return take(now, l.one(l.sources, source, now), l.all)
}

// ofUser takes a request from what the user may make, and returns how long to wait if it cannot.
func (l *limits) ofUser(user string, now time.Time) time.Duration {
	return take(now, l.one(l.users, user, now))
}

func (l *limits) one(of map[string]*rate.Limiter, key string, now time.Time) *rate.Limiter {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if len(of) >= mostKept {
		maps.DeleteFunc(of, func(_ string, other *rate.Limiter) bool { return other.TokensAt(now) >= oneBurst })
	}
	if of[key] == nil {
		of[key] = rate.NewLimiter(oneRate, oneBurst)
	}
	return of[key]
}

// take takes one of each, or none and returns how long to wait for it.
func take(now time.Time, from ...*rate.Limiter) (wait time.Duration) {
	var taken []*rate.Reservation
	for _, limiter := range from {
		reservation := limiter.ReserveN(now, 1)
		taken, wait = append(taken, reservation), max(wait, reservation.DelayFrom(now))
	}
	if wait > 0 {
		for _, reservation := range taken {
			reservation.CancelAt(now)
		}
	}
	return wait
}
