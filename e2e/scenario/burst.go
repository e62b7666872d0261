package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Burst is a period in which clients connect, 5 to 500 ms apart, each to a random target. A random half of them run a transaction of
// about 0.8 s that inserts a row into the table; the others only run a query.
type Burst struct {
	Targets []Target
	// Table has one column, of text.
	Table string
	// Lasts is for how long sessions begin, and Patience how long each may take.
	Lasts, Patience time.Duration
	// Begin delays the first session until it is closed, so that starting the program takes none of that time; nil: no delay.
	Begin <-chan struct{} `json:"-"`
}

// Target is where sessions go.
type Target struct {
	// Name stands for it in the report, whatever Settings, a connection string, contains.
	Name, Settings string
}

// BurstReport is what became of a burst's sessions.
type BurstReport struct {
	Sessions int
	// Committed is how many rows were inserted for certain.
	Committed int
	// Quickest is the duration of the quickest successful session without a transaction, Slowest that of the slowest session.
	Quickest, Slowest time.Duration
	Failures          []BurstFailure
}

// BurstFailure is a session that failed.
type BurstFailure struct {
	Target string
	// Phase is "connect", "query" or "commit".
	Phase string
	// Code is the SQLSTATE; empty if PostgreSQL sent none.
	Code, Text string
	// Began is when the session began, and After when it failed.
	Began time.Time
	After time.Duration
}

// String describes the failure.
func (f BurstFailure) String() string {
	return fmt.Sprintf("%s: %s through %s failed after %.2fs: %s %s", f.Began.Format(time.StampMilli), f.Phase, f.Target, f.After.Seconds(), f.Code, f.Text)
}

// burst is where that program is put in the client's pod.
const burst = "/tmp/burst"

// PutBurst copies the program of e2e/cmd/burst at that path into the client's pod.
func (k *Kubernetes) PutBurst(ctx context.Context, namespace, program string) error {
	return k.Put(ctx, namespace, clientPod, clientPod, program, burst)
}

// Burst lets the program connect from the client's pod, and returns when all of its sessions have ended.
func (k *Kubernetes) Burst(ctx context.Context, namespace string, order Burst) (BurstReport, error) {
	in, err := json.Marshal(order)
	if err != nil {
		return BurstReport{}, fmt.Errorf("write the order of a burst: %w", err)
	}
	var stdout, stderr bytes.Buffer
	if err := k.stream(ctx, namespace, clientPod, clientPod, []string{burst}, told{order.Begin, bytes.NewReader(in)}, &stdout, &stderr); err != nil {
		return BurstReport{}, fmt.Errorf("run a burst in %s: %w: %s", namespace, err, stderr.String())
	}
	var report BurstReport
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		return BurstReport{}, fmt.Errorf("read the report of a burst: %w: %s", err, stderr.String())
	}
	return report, nil
}

// told reads an order only once begin is closed.
type told struct {
	begin <-chan struct{}
	io.Reader
}

func (t told) Read(part []byte) (int, error) {
	if t.begin != nil {
		<-t.begin
	}
	return t.Reader.Read(part)
}
