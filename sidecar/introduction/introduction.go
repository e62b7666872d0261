// Package introduction remembers for whom the wake gateway speaks. While a cluster falls asleep or wakes, the gateway of the
// plugin passes sessions on, and PostgreSQL sees the gateway's address. The gateway says beforehand whose session will come
// from which of its ports, so that rules about clients' addresses hold all the same.
//
// Anybody who reaches the pod may introduce, but only for connections from the address that the introduction itself comes
// from: whoever lies gives away nothing but his own connections.
package introduction

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
)

const (
	// Version is the version of the introductions that this program reads.
	Version = 1
	// MaximumBody bounds an introduction in bytes.
	MaximumBody = 1 << 10
	// maximumKept bounds the memory that introductions take; what comes beyond it counts as the gateway's own.
	maximumKept = 4096
	// comesWithin is how long an introduced session may take to come.
	comesWithin = time.Minute
)

// ErrInvalid says that an introduction cannot be used.
var ErrInvalid = errors.New("unusable introduction")

// Introduction is what the gateway says, as JSON.
type Introduction struct {
	// Version is that of the format.
	Version int `json:"version"`
	// Port is the gateway's port from which the session will come; its address is that of the request.
	Port uint16 `json:"port"`
	// Peer is the client that the gateway speaks for.
	Peer netip.AddrPort `json:"peer"`
}

// Parse reads an introduction. Errors are [ErrInvalid].
func Parse(body []byte) (Introduction, error) {
	var i Introduction
	if len(body) > MaximumBody {
		return Introduction{}, fmt.Errorf("%w: more than %d bytes", ErrInvalid, MaximumBody)
	}
	if err := json.Unmarshal(body, &i); err != nil {
		return Introduction{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	switch {
	case i.Version != Version:
		return Introduction{}, fmt.Errorf("%w: version %d, want %d", ErrInvalid, i.Version, Version)
	case i.Port == 0 || !i.Peer.IsValid():
		return Introduction{}, fmt.Errorf("%w: port and peer must be given", ErrInvalid)
	}
	i.Peer = netip.AddrPortFrom(i.Peer.Addr().Unmap().WithZone(""), i.Peer.Port())
	return i, nil
}

// Book keeps introductions. It may be used by several goroutines.
type Book struct {
	mutex   sync.Mutex
	entries map[netip.AddrPort]entry
}

type entry struct {
	peer netip.AddrPort
	at   time.Time
	seen bool // in a look
}

// NewBook makes an empty book.
func NewBook() *Book { return &Book{entries: map[netip.AddrPort]entry{}} }

// Add takes an introduction in that came from the gateway's address. It is passed over when the book is full: the session is
// then the gateway's own, and counts.
func (b *Book) Add(gateway netip.Addr, i Introduction) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	now := time.Now()
	if len(b.entries) >= maximumKept {
		b.expire(now)
	}
	if len(b.entries) < maximumKept {
		b.entries[netip.AddrPortFrom(gateway.Unmap().WithZone(""), i.Port)] = entry{peer: i.Peer, at: now}
	}
}

// Behind returns the client behind a connection: the one that was introduced, else the connection's own peer.
func (b *Book) Behind(peer netip.AddrPort) netip.AddrPort {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if e, introduced := b.entries[peer]; introduced {
		return e.peer
	}
	return peer
}

// Ended forgets a connection that has ended: its port may be another client's next.
func (b *Book) Ended(peer netip.AddrPort) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	delete(b.entries, peer)
}

// Seen takes in which connections a look has found, and forgets those that have gone or never came.
func (b *Book) Seen(connected func(netip.AddrPort) bool) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	for peer, e := range b.entries {
		switch {
		case connected(peer):
			e.seen = true
			b.entries[peer] = e
		case e.seen:
			delete(b.entries, peer)
		}
	}
	b.expire(time.Now())
}

// expire forgets what was introduced and did not come.
func (b *Book) expire(now time.Time) {
	for peer, e := range b.entries {
		if !e.seen && now.Sub(e.at) > comesWithin {
			delete(b.entries, peer)
		}
	}
}
