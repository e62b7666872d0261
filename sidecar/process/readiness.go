package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// leaseDuration is how long the port stays closed after the last request.
	leaseDuration = 5 * time.Second
	// renewInterval is how often the worker renews its lease.
	renewInterval = time.Second
	// answerTimeout is how long the worker waits for an answer. It leaves time for another try before the lease ends.
	answerTimeout = 2 * time.Second
	// retryInterval is how long the supervisor waits before it tries again to open a socket.
	retryInterval = time.Second
)

// The requests and their answers.
const (
	withdraw byte = 'w'
	restore  byte = 'r'

	withdrawn = "closed\n"
	restored  = "open\n"
)

// Readiness is the worker's side of the lease. Its methods may be called concurrently and repeatedly.
type Readiness struct {
	dial func(context.Context) (net.Conn, error)

	mu sync.Mutex
	// renewal renews the lease; nil without one.
	renewal *renewal
	// restored is whether this client has ended the lease. It begins as false, because an earlier worker may have left
	// a lease.
	restored bool
}

// NewReadiness returns a client of the supervisor's Unix socket.
func NewReadiness(socket string) *Readiness {
	return &Readiness{dial: func(ctx context.Context) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", socket)
	}}
}

// Withdraw closes the port and returns once it is closed. It stays closed until Restore, or until the lease runs out
// after the context has ended.
func (c *Readiness) Withdraw(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.renewal.held(time.Now()) {
		return nil
	}
	c.endRenewal()
	c.restored = false
	sent := time.Now()
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	if err := ask(ctx, conn, withdraw, withdrawn); err != nil {
		return errors.Join(fmt.Errorf("close the readiness port: %w", err), conn.Close())
	}
	lease := &renewal{until: sent.Add(leaseDuration)}
	lease.ctx, lease.cancel = context.WithCancel(ctx)
	lease.done.Go(func() { c.renew(lease, conn) })
	c.renewal = lease
	return nil
}

// Held reports whether the port has been closed without a break since Withdraw returned. After a break, for example
// because this process was paused, the port is closed again as soon as possible, but clients may have reached
// PostgreSQL directly meanwhile.
func (c *Readiness) Held() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.renewal.held(time.Now())
}

// Restore opens the port and returns once it is open. If it fails, the port opens by itself when the lease ends.
func (c *Readiness) Restore() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endRenewal()
	if c.restored {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	if err := ask(ctx, conn, restore, restored); err != nil {
		return errors.Join(fmt.Errorf("open the readiness port: %w", err), conn.Close())
	}
	_ = conn.Close() // the answer was read
	c.restored = true
	return nil
}

// renew renews the lease until its context ends. The connection is then closed without a release, so that the worker
// that is started next may take the lease over.
func (c *Readiness) renew(lease *renewal, conn net.Conn) {
	ctx := lease.ctx
	ticker := time.NewTicker(renewInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			if conn != nil {
				_ = conn.Close()
			}
			return
		case <-ticker.C:
		}
		if conn == nil {
			fresh, err := c.connect(ctx)
			if err != nil {
				continue
			}
			conn = fresh
		}
		sent := time.Now()
		if err := ask(ctx, conn, withdraw, withdrawn); err != nil {
			lease.lost()
			_ = conn.Close()
			conn = nil
			continue
		}
		lease.renewed(sent)
	}
}

// endRenewal stops renewing the lease, which then runs out.
func (c *Readiness) endRenewal() {
	if c.renewal == nil {
		return
	}
	c.renewal.cancel()
	c.renewal.done.Wait()
	c.renewal = nil
}

func (c *Readiness) connect(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the supervisor: %w", err)
	}
	return conn, nil
}

// ask sends a request and waits for its answer, at most for answerTimeout.
func ask(ctx context.Context, conn net.Conn, request byte, answer string) error {
	if err := conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return fmt.Errorf("limit the time: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := conn.Write([]byte{request}); err != nil {
		return fmt.Errorf("send the request: %w", err)
	}
	got := make([]byte, len(answer))
	if _, err := io.ReadFull(conn, got); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if string(got) != answer {
		return fmt.Errorf("the answer is %q", got)
	}
	return nil
}

// renewal is a lease that is renewed.
type renewal struct {
	// ctx ends the renewing; done waits for its end.
	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu sync.Mutex
	// until is how long the port stays closed without another renewal, counted from when the last one was sent.
	until time.Time
	// broken is whether the connection was lost, so that the lease may have ended.
	broken bool
}

// held reports whether the lease has not ended since it was taken, and is still renewed.
func (r *renewal) held(now time.Time) bool {
	if r == nil || r.ctx.Err() != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.broken && now.Before(r.until)
}

// renewed records a renewal that was answered.
func (r *renewal) renewed(sent time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until = sent.Add(leaseDuration)
}

// lost records that the connection was lost: the supervisor closes it when the lease ends.
func (r *renewal) lost() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = true
}
