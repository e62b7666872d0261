package control

import (
	"log/slog"
	"time"
)

// apiClock is the clock of the API server.
type apiClock struct {
	ahead time.Duration // of this node's
}

// at returns what it shows when this node's clock shows here.
func (c *apiClock) at(here time.Time) time.Time { return here.Add(c.ahead) }

// here returns what this node's clock shows when it shows at.
func (c *apiClock) here(at time.Time) time.Time { return at.Add(-c.ahead) }

// clockTolerance is how far the deadline of an announcement may be off, because the machine acts until expiryMargin
// before it.
const clockTolerance = time.Second

// learn learns how far it is ahead from an announcement, which was sent at began and written by the API server at
// written, and reports whether that has changed. The gateway compares the deadline with a third clock: if each is
// compared with the API server's, a node whose clock is wrong keeps no cluster awake.
func (c *apiClock) learn(written, began time.Time, logger *slog.Logger) (changed bool) {
	sent, answered := c.at(began), c.at(time.Now())
	more := time.Duration(0)
	switch {
	case written.IsZero():
	case written.After(answered):
		more = written.Sub(answered)
	case written.Add(time.Second).Before(sent): // it is in whole seconds
		more = written.Add(time.Second).Sub(sent)
	}
	if more.Abs() <= clockTolerance {
		return false
	}
	c.ahead += more
	logger.Warn("the clock of this node is not that of the API server, and is corrected for announcements and sleeps", "ahead", (-c.ahead).String())
	return true
}
