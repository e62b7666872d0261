package gateway

import "time"

// Limits bound the resources that clients can use.
type Limits struct {
	// Held is how many clients can wait for a session. Beyond that, another client loses its slot, or the newcomer is
	// refused.
	Held int
	// Starting is how many connections can be in the starting step. Beyond that, the client with the most slots loses one.
	Starting int
	// Spliced is how many sessions can pass through. A namespace can have as many of them as are still free.
	Spliced int
	// StartupFor is how long a connection may take to send its startup packet.
	StartupFor time.Duration
	// HeldFor is how long a client is held before it is told that its cluster did not wake.
	HeldFor time.Duration
	// LongWait is how long a client waits before its wait is logged.
	LongWait time.Duration
	// DialFor is how long an instance may take to accept a connection, and to process a cancel request.
	DialFor time.Duration
	// StartupBytes is how many bytes a client may send in its startup packet, and again while it is held.
	StartupBytes int
}

// Room returns how many clients can be held by a process with so many file descriptors while every port and every other
// slot is in use: a listening port uses one, a held client one and a session six, four of which are the pipes of
// splice(2).
func (l Limits) Room(descriptors, ports int) int {
	return descriptors - ports - l.Starting - 6*l.Spliced
}

// DefaultLimits returns the limits for a gateway with 65,536 file descriptors: 20,000 ports fit together with every
// slot below.
func DefaultLimits() Limits {
	return Limits{
		Held: 4096, Starting: 2048, Spliced: 6144,
		// As long as PostgreSQL by default (authentication_timeout): on a busy node a Java program that had just started took
		// longer than ten seconds from its connect to its ClientHello.
		StartupFor: time.Minute,
		HeldFor:    5 * time.Minute, // as long as a wake may take
		LongWait:   10 * time.Second,
		DialFor:    3 * time.Second, // enough for one lost SYN (1 s)
		// A ClientHello with post-quantum keys has 1.6 KiB (testdata of package startup) and fits in one TLS record; a
		// startup packet has at most 10,000 bytes. When every slot is held, clients that send the maximum use 128 MiB.
		StartupBytes: 16 << 10,
	}
}
