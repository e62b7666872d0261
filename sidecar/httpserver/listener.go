package httpserver

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// Listener is a listener with a limited number of slots. While slots are free, every newcomer gets one. When all are
// taken, a newcomer takes the slot of the oldest connection of the source address with the most connections; that
// connection is closed whatever it is doing. Preferred sources lose slots only to one another.
type Listener struct {
	net.Listener
	most      int
	preferred func(netip.Addr) bool

	mutex sync.Mutex
	open  []*Conn // oldest first
}

// NewListener limits the connections of the listener. preferred reports whether a source is preferred; nil means that
// none is.
func NewListener(listener net.Listener, most int, preferred func(netip.Addr) bool) *Listener {
	if preferred == nil {
		preferred = func(netip.Addr) bool { return false }
	}
	return &Listener{Listener: listener, most: most, preferred: preferred}
}

// Conn is a connection that holds a slot until it is closed.
type Conn struct {
	net.Conn
	listener  *Listener
	source    netip.Addr
	preferred bool
}

// Accept returns the next connection that gets a slot.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		conn := &Conn{Conn: accepted, listener: l, source: sourceOf(accepted)}
		conn.preferred = l.preferred(conn.source)
		displaced := l.admit(conn)
		if displaced != nil {
			_ = displaced.Conn.Close()
		}
		if displaced != conn {
			return conn, nil
		}
	}
}

// Close frees the slot and closes the connection.
func (c *Conn) Close() error {
	c.Keep()
	return c.Conn.Close()
}

// Keep frees the slot but keeps the connection open: its peer has been authenticated.
func (c *Conn) Keep() {
	c.listener.mutex.Lock()
	defer c.listener.mutex.Unlock()
	c.listener.remove(c)
}

// admit gives the connection a slot and returns the connection that loses its own: the newcomer itself if it is
// refused.
func (l *Listener) admit(newcomer *Conn) *Conn {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	var displaced *Conn
	if len(l.open) >= l.most {
		if displaced = displaceable(l.open, newcomer); displaced == newcomer {
			return newcomer
		}
		l.remove(displaced)
	}
	l.open = append(l.open, newcomer)
	return displaced
}

func (l *Listener) remove(conn *Conn) {
	if at := slices.Index(l.open, conn); at >= 0 {
		l.open = slices.Delete(l.open, at, at+1)
	}
}

// displaceable returns the connection that loses its slot when all are taken; open is ordered oldest first.
func displaceable(open []*Conn, newcomer *Conn) *Conn {
	counts := map[netip.Addr]int{}
	for _, conn := range open {
		counts[conn.source]++
	}
	chosen, most := newcomer, 0
	for _, preferred := range []bool{false, true} {
		for _, conn := range open {
			if conn.preferred == preferred && counts[conn.source] > most {
				chosen, most = conn, counts[conn.source]
			}
		}
		if most > 0 || !newcomer.preferred {
			break
		}
	}
	return chosen
}

// sourceOf returns the address of the peer.
func sourceOf(conn net.Conn) netip.Addr {
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}
