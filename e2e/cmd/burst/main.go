// Command burst opens sessions at random moments as its standard input, a scenario.Burst, says, and writes what became of them
// to its standard output.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// The shortest time between two sessions, and what is at most added to it.
const (
	apart     = 5 * time.Millisecond
	apartMore = 495 * time.Millisecond
)

func main() {
	if err := run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "burst:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, in io.Reader, out io.Writer) error {
	var order scenario.Burst
	if err := json.NewDecoder(in).Decode(&order); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	if len(order.Targets) == 0 {
		return errors.New("the order names no target")
	}
	return json.NewEncoder(out).Encode(carryOut(ctx, order))
}

func carryOut(ctx context.Context, order scenario.Burst) scenario.BurstReport {
	var report scenario.BurstReport
	var mutex sync.Mutex
	var group sync.WaitGroup
	for end := time.Now().Add(order.Lasts); time.Now().Before(end); time.Sleep(apart + rand.N(apartMore)) {
		target, writes := order.Targets[rand.IntN(len(order.Targets))], rand.IntN(2) == 0
		group.Go(func() {
			began := time.Now()
			ctx, cancel := context.WithTimeout(ctx, order.Patience)
			defer cancel()
			phase, err := session(ctx, target.Settings, order.Table, writes)
			took := time.Since(began)
			mutex.Lock()
			defer mutex.Unlock()
			report.Sessions++
			report.Slowest = max(report.Slowest, took)
			switch {
			case err != nil:
				failure := scenario.BurstFailure{Target: target.Name, Phase: phase, Text: err.Error(), Began: began, After: took}
				if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
					failure.Code = refused.Code
				}
				report.Failures = append(report.Failures, failure)
			case writes:
				report.Committed++
			case report.Quickest == 0 || took < report.Quickest:
				report.Quickest = took
			}
		})
	}
	group.Wait()
	return report
}

// session opens a session and uses it. After an error, phase is what failed.
func session(ctx context.Context, settings, table string, writes bool) (phase string, err error) {
	conn, err := pgx.Connect(ctx, settings)
	if err != nil {
		return "connect", err
	}
	defer func() { _ = conn.Close(ctx) }()
	if !writes {
		_, err := conn.Exec(ctx, "select 1")
		return "query", err
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return "query", err
	}
	if _, err := tx.Exec(ctx, "insert into "+pgx.Identifier{table}.Sanitize()+" values ($1)", time.Now().String()); err != nil {
		return "query", err
	}
	if _, err := tx.Exec(ctx, "select pg_sleep(0.8)"); err != nil {
		return "query", err
	}
	return "commit", tx.Commit(ctx)
}
