package gateway

import "time"

// Limits bound what clients can make the gateway hold.
type Limits struct {
	// Held is how many clients wait for a session. When so many do, those who hold the most give way.
	Held int
	// Starting is how many connections have not said yet what they are. When so many have not, those who hold the most give way.
	Starting int
	// Spliced is how many sessions pass through. A namespace may have as many of them as slots are free.
	Spliced int
	// OpeningFor is how long a connection may take to say what it is.
	StartupFor time.Duration
	// HeldFor is how long a client is held before it is told that its cluster did not wake.
	HeldFor time.Duration
	// DialFor is how long an instance may take to accept a connection, and to take a cancel request.
	DialFor time.Duration
	// StartupBytes is how much a client may send in its startup packet, and again while it is held.
	StartupBytes int
}

// DefaultLimits are those of a gateway with 65,536 file descriptors: a port in listening takes one, a held client one and a
// session six, four of which are the pipes of splice(2). So 20,000 ports and every slot below fit in.
func DefaultLimits() Limits {
	return Limits{
		Held: 4096, Starting: 2048, Spliced: 6144,
		StartupFor: 10 * time.Second, // a client on a bad line retransmits three times within it (1, 2 and 4 s)
		HeldFor:    5 * time.Minute,  // as long as a wake may take
		DialFor:    3 * time.Second,  // one lost SYN (1 s) and its answer
		// A ClientHello with post-quantum keys has 1.6 KiB (testdata of package startup) and fits in one record of TLS; a startup
		// packet has at most 10,000 bytes. Clients that send the most they may take 128 MiB when every slot is held.
		StartupBytes: 16 << 10,
	}
}
