package activity

import (
	"net/netip"
	"slices"
	"time"
)

const (
	// resemblance is by how many bytes two tries of a wrong password by one client may differ: signatures differ by up to three.
	resemblance = 8
	// fewestRefused is how often a client was refused before another session of the same length is like that.
	fewestRefused = 2
	// refusedLately is for how long that means anything, and refusedAtMost how many lengths are kept.
	refusedLately, refusedAtMost = 10 * time.Minute, 32
)

// Refused remembers how much sessions sent and received that were not logins, of those that may have been. A client that tries a
// wrong password again and again sends and receives as much each time, and would receive some hundred bytes more if it logged
// in. That another client at its address has a session of the same two lengths cannot be ruled out: it proves nothing, and serves
// only to learn what the operator's exporter does beside such tries. The zero value remembers nothing.
type Refused struct{ known []refusal }

type refusal struct {
	from           netip.Addr
	sent, received uint64
	times          int
	at             time.Time
}

func (r refusal) like(e Ended) bool {
	return r.from == e.Peer.Addr().Unmap() && near(r.sent, e.Sent) && near(r.received, e.Received)
}

func near(a, b uint64) bool { return max(a, b)-min(a, b) <= resemblance }

// Remember takes in a session of which it is known that it was none.
func (r *Refused) Remember(e Ended) {
	r.known = slices.DeleteFunc(r.known, func(k refusal) bool { return e.At.Sub(k.at) > refusedLately })
	at := slices.IndexFunc(r.known, func(k refusal) bool { return k.like(e) })
	if at < 0 {
		if len(r.known) == refusedAtMost {
			r.known = slices.Delete(r.known, 0, 1)
		}
		r.known = append(r.known, refusal{from: e.Peer.Addr().Unmap(), sent: e.Sent, received: e.Received, times: 1, at: e.At})
		return
	}
	r.known[at].times++
	r.known[at].at = e.At
}

// Like tells whether a session is as long as several that were refused.
func (r *Refused) Like(e Ended) bool {
	return slices.ContainsFunc(r.known, func(k refusal) bool {
		return k.like(e) && k.times >= fewestRefused && e.At.Sub(k.at) <= refusedLately
	})
}
