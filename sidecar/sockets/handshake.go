package sockets

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5/pgproto3"
)

// errNoTLS says that the server has no TLS.
var errNoTLS = errors.New("the server has no TLS")

// handshakes are TLS handshakes that take as little, and as much, as those of clients do: with a key that the server takes
// at once, with one that it asks to replace (its ssl_ecdh_curve is prime256v1 by default, and most clients offer X25519
// first), and with the older version of TLS.
func handshakes() []func(context.Context, net.Conn) error {
	var all []func(context.Context, net.Conn) error
	for _, config := range []*tls.Config{
		{MinVersion: tls.VersionTLS13, CurvePreferences: []tls.CurveID{tls.CurveP256}},
		{MinVersion: tls.VersionTLS13, CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256}},
		{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12},
	} {
		all = append(all, func(ctx context.Context, conn net.Conn) error { return handshake(ctx, conn, config) })
	}
	return all
}

// handshake asks for TLS and does nothing more. The certificate is not looked at: nothing is sent that is worth anything.
func handshake(ctx context.Context, conn net.Conn, config *tls.Config) error {
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return fmt.Errorf("limit a handshake: %w", err)
	}
	request, err := (&pgproto3.SSLRequest{}).Encode(nil)
	if err != nil {
		return fmt.Errorf("encode a request for TLS: %w", err)
	}
	if _, err := conn.Write(request); err != nil {
		return fmt.Errorf("ask for TLS: %w", err)
	}
	answer := make([]byte, 1)
	if _, err := conn.Read(answer); err != nil {
		return fmt.Errorf("ask for TLS: %w", err)
	}
	if answer[0] != 'S' {
		return errNoTLS
	}
	config.InsecureSkipVerify = true
	client := tls.Client(conn, config)
	if err := client.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("shake hands: %w", err)
	}
	_ = client.Close() // without its goodbye the server would log a broken connection
	return nil
}
