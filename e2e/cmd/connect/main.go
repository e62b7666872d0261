// Command connect connects to PostgreSQL through pgx with the connection string that is its argument, asks and prints the answer.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/cnpg-i/scale-to-zero/e2e/program"
)

func main() {
	program.Run("connect", func(ctx context.Context) error { return run(ctx, os.Args[1:]) })
}

func run(ctx context.Context, arguments []string) error {
	if len(arguments) != 1 {
		return fmt.Errorf("want one argument, a connection string, and have %d", len(arguments))
	}
	conn, err := pgx.Connect(ctx, arguments[0])
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var answer string
	if err := conn.QueryRow(ctx, "select 'answered'").Scan(&answer); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	fmt.Println(answer)
	return nil
}
