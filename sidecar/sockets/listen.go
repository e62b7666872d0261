package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
)

// The multicast groups of NETLINK_SOCK_DIAG for destroyed sockets (linux/sock_diag.h).
const (
	groupTCP4 = 1
	groupTCP6 = 3
)

const (
	// buffer, in bytes, is the largest that an unprivileged process gets by default (net.core.rmem_max).
	buffer = 208 << 10
	// longestDatagram, in bytes, is several times what the kernel sends for one socket.
	longestDatagram = 8 << 10
	// maximumReports bounds the reports returned at once; in a storm they arrive faster than they are read.
	maximumReports = 1024
	// proofTimeout bounds the test that reports arrive; they have been observed to arrive within 0.1 s.
	proofTimeout = 2 * time.Second
)

var (
	// ErrUnsupported means that the kernel does not report ended sockets here.
	ErrUnsupported = errors.New("the kernel does not report the sockets that end")
	// ErrLost means that reports were lost because they arrived faster than they were read.
	ErrLost = errors.New("reports of the kernel were lost")
)

// Listener receives the reports.
type Listener struct {
	conn *netlink.Conn
	port uint16
}

// Listen joins the groups for a local port. Success does not prove that reports arrive: [Listener.Prove] does. Errors
// are [ErrUnsupported].
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

// Close leaves the groups and makes a running Receive fail.
func (l *Listener) Close() { _ = l.conn.Close() }

// Receive waits for reports until the deadline; zero means none. It returns no reports once the deadline has passed.
// Errors are those of [Listener.Wait] and [Listener.Arrived].
func (l *Listener) Receive(deadline time.Time) ([]activity.Ended, error) {
	if err := l.conn.SetReadDeadline(deadline); err != nil {
		return nil, fmt.Errorf("limit the wait for reports: %w", err)
	}
	err := l.Wait()
	if err := l.conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("wait for reports: %w", err)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return l.Arrived()
}

// Wait blocks until [Listener.Arrived] has something to return. An error means that the listener is closed.
func (l *Listener) Wait() error {
	conn, err := l.conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("wait for reports: %w", err)
	}
	err = conn.Read(func(fd uintptr) bool {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return ready != 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
	if err != nil {
		return fmt.Errorf("wait for reports: %w", err)
	}
	return nil
}

// Arrived returns the reports that are ready, without blocking. It may be called while another goroutine waits.
// [ErrLost] means that some were lost and more may follow; any other error means that no more will come.
func (l *Listener) Arrived() ([]activity.Ended, error) {
	conn, err := l.conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("receive: %w", err)
	}
	var reports []activity.Ended
	buffer := make([]byte, longestDatagram)
	for len(reports) < maximumReports {
		length, err := receiveNow(conn, buffer)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return reports, nil
		case errors.Is(err, unix.ENOBUFS):
			return reports, fmt.Errorf("receive: %w", ErrLost)
		case err != nil:
			return reports, fmt.Errorf("receive: %w", err)
		case length > len(buffer):
			return reports, fmt.Errorf("receive %d bytes at once: %w", length, ErrLost)
		}
		received, err := decodeAll(buffer[:length], time.Now())
		reports = append(reports, received...)
		if err != nil {
			return reports, fmt.Errorf("%w: %w", ErrLost, err) // the lost report may have been of any session
		}
	}
	return reports, nil
}

// receiveNow reads a datagram that is ready, and returns its full length even if the buffer is shorter. It must not use
// [syscall.RawConn.Read], which would wait for the goroutine in [Listener.Wait].
func receiveNow(conn syscall.RawConn, buffer []byte) (length int, err error) {
	failure := conn.Control(func(fd uintptr) {
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			length, _, err = unix.Recvfrom(int(fd), buffer, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		}
	})
	return length, errors.Join(failure, err)
}

// Prove connects to the own port, sends nothing, and waits for that connection's report: only then does silence mean
// that nothing happened. It returns all other reports. The caller must not receive meanwhile. The error is
// [ErrUnsupported] if the report does not come, otherwise that of the connection.
func (l *Listener) Prove(ctx context.Context) ([]activity.Ended, error) {
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	local, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	return l.await(ctx, local)
}

// connect opens and closes one connection, and returns its local address.
func (l *Listener) connect(ctx context.Context) (netip.AddrPort, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(loopback, l.port).String())
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("connect to the own port: %w", err)
	}
	defer func() { _ = conn.Close() }()
	return conn.LocalAddr().(*net.TCPAddr).AddrPort(), nil
}

// await waits for the report of one connection and returns the reports of others.
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
