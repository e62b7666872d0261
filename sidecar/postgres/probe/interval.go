package probe

import "time"

// How often a PostgreSQL that starts is probed: very often and then often for as long as most starts take, and then
// rarely, because each answer during recovery is a line in its log.
const (
	first, often, seldom = 20 * time.Millisecond, 100 * time.Millisecond, time.Second
	firstFor, oftenFor   = 2 * time.Second, 5 * time.Second
)

// Interval returns how long to wait before the next probe. since is how long ago PostgreSQL was first probed, 0 if not
// yet.
func Interval(since time.Duration) time.Duration {
	switch {
	case since < firstFor:
		return first
	case since < oftenFor:
		return often
	default:
		return seldom
	}
}
