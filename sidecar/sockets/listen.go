package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
)

// The multicast groups of NETLINK_SOCK_DIAG that destroyed sockets are reported to (linux/sock_diag.h).
const (
	groupTCP4 = 1
	groupTCP6 = 3
)

const (
	// buffer, in bytes, is as large as an ordinary process may ask for by default (net.core.rmem_max).
	buffer = 208 << 10
	// proofTimeout bounds the test that reports arrive; they were seen within 0.1 s.
	proofTimeout = 2 * time.Second
)

var (
	// ErrUnsupported says that the kernel does not report ended sockets here.
	ErrUnsupported = errors.New("the kernel does not report the sockets that end")
	// ErrLost says that reports were lost, since they came faster than they were read.
	ErrLost = errors.New("reports of the kernel were lost")
)

// Listener receives the reports.
type Listener struct {
	conn *netlink.Conn
	port uint16
}

// Listen joins the groups for a local port. That it succeeds does not prove that reports arrive: [Listener.Prove] does.
// Errors are [ErrUnsupported].
func Listen(port uint16) (*Listener, error) {
	program, err := filter(port)
	if err != nil {
		return nil, err
	}
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err := join(conn, func() error { return conn.SetBPF(program) }); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return &Listener{conn: conn, port: port}, nil
}

func join(conn *netlink.Conn, setFilter func() error) error {
	if err := setFilter(); err != nil {
		return fmt.Errorf("set the filter: %w", err)
	}
	if err := conn.SetReadBuffer(buffer); err != nil {
		return fmt.Errorf("set the buffer: %w", err)
	}
	for _, group := range []uint32{groupTCP4, groupTCP6} {
		if err := conn.JoinGroup(group); err != nil {
			return fmt.Errorf("join group %d: %w", group, err)
		}
	}
	return nil
}

// Close leaves the groups; a running Receive fails.
func (l *Listener) Close() { _ = l.conn.Close() }

// Receive waits for reports until the deadline; a zero one is never. It returns none when the deadline has passed. An error
// that is [ErrLost] says that some were lost, and that more may follow; any other that no more come.
func (l *Listener) Receive(deadline time.Time) ([]activity.Ended, error) {
	if err := l.conn.SetReadDeadline(deadline); err != nil {
		return nil, fmt.Errorf("limit the wait for reports: %w", err)
	}
	messages, err := l.conn.Receive()
	now := time.Now()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, nil
	case errors.Is(err, unix.ENOBUFS):
		return nil, fmt.Errorf("receive: %w", ErrLost)
	case err != nil:
		return nil, fmt.Errorf("receive: %w", err)
	}
	reports := make([]activity.Ended, 0, len(messages))
	for _, message := range messages {
		ended, err := decode(message.Data, now)
		if err != nil {
			return reports, fmt.Errorf("%w: %w", ErrLost, err) // it may have been anything
		}
		reports = append(reports, ended)
	}
	return reports, nil
}

// Prove connects to the own port, sends nothing, and waits for the report of it: silence means something only after that. It
// returns the reports that were not its own. The caller must not receive meanwhile. Errors are [ErrUnsupported] if the report
// does not come, and else those of the connection.
func (l *Listener) Prove(ctx context.Context) ([]activity.Ended, error) {
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	local, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	return l.await(ctx, local)
}

// connect makes one connection and closes it. It returns the connection's own address.
func (l *Listener) connect(ctx context.Context) (netip.AddrPort, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(loopback, l.port).String())
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("connect to the own port: %w", err)
	}
	defer func() { _ = conn.Close() }()
	return conn.LocalAddr().(*net.TCPAddr).AddrPort(), nil
}

// await waits for the report of one connection and returns those of others.
func (l *Listener) await(ctx context.Context, local netip.AddrPort) ([]activity.Ended, error) {
	deadline, _ := ctx.Deadline()
	var others []activity.Ended
	for proven := false; ; {
		reports, err := l.Receive(deadline)
		for _, report := range reports {
			if report.Peer == local {
				proven = true
			} else {
				others = append(others, report)
			}
		}
		switch {
		case err != nil:
			return others, err
		case proven:
			return others, nil
		case ctx.Err() != nil || !time.Now().Before(deadline):
			return others, fmt.Errorf("%w: a connection to the own port was not reported", ErrUnsupported)
		}
	}
}
