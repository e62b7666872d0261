package probe

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// answer is a server's answer to a startup packet.
func answer(t *testing.T, conn net.Conn, messages []pgproto3.BackendMessage) {
	t.Helper()
	defer func() { _ = conn.Close() }()
	backend := pgproto3.NewBackend(conn, conn)
	packet, err := backend.ReceiveStartupMessage()
	if err != nil {
		t.Errorf("the startup packet is not understood: %v", err)
		return
	}
	if startup, ok := packet.(*pgproto3.StartupMessage); !ok || startup.Parameters["user"] != Role || startup.Parameters["database"] != Database ||
		startup.Parameters["application_name"] != contract.ApplicationName {
		t.Errorf("the server received %#v", packet)
	}
	for _, message := range messages {
		backend.Send(message)
	}
	if err := backend.Flush(); err != nil {
		t.Error(err)
	}
	if len(messages) > 1 {
		if message, err := backend.Receive(); err != nil {
			t.Errorf("the session is not ended: %v", err)
		} else if _, ok := message.(*pgproto3.Terminate); !ok {
			t.Errorf("the session is ended by %T", message)
		}
	}
}

func of(messages ...pgproto3.BackendMessage) []pgproto3.BackendMessage { return messages }

func TestStartup_returnsTheCodeOfAnError(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		answer []pgproto3.BackendMessage
		code   string
		err    error
	}{
		{"a server that asks for a password accepts sessions", of(&pgproto3.AuthenticationSASL{AuthMechanisms: []string{"SCRAM-SHA-256"}}), "", nil},
		{"a session that is opened without a password is ended", of(&pgproto3.AuthenticationOk{}, &pgproto3.ParameterStatus{Name: "a", Value: "b"}, &pgproto3.ReadyForQuery{TxStatus: 'I'}), SessionOpened, nil},
		{"a server that starts or shuts down says so", of(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P03"}), CannotConnectNow, nil},
		{"a server that refuses for another reason says which", of(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "53300"}), "53300", nil},
		{"a server that closes the connection is unreachable", nil, "", ErrUnreachable},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			client, server := net.Pipe()
			defer func() { _ = client.Close() }()
			done := make(chan struct{})
			go func() { defer close(done); answer(t, server, row.answer) }()
			code, err := Startup(t.Context(), client)
			<-done
			if code != row.code || !errors.Is(err, row.err) {
				t.Errorf("got %q, %v, want %q, %v", code, err, row.code, row.err)
			}
		})
	}
}

func TestStartup_endsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer func() { _, _ = client.Close(), server.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		if code, err := Startup(ctx, client); code != "" || !errors.Is(err, ErrUnreachable) || time.Since(begun) != time.Second {
			t.Errorf("got %q, %v after %s from a server that is silent", code, err, time.Since(begun))
		}
	})
}

func FuzzReadAnswer(f *testing.F) {
	for _, code := range []string{"57P03", "53300"} {
		answer, err := (&pgproto3.ErrorResponse{Severity: "FATAL", Code: code, Message: "no"}).Encode(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(answer)
	}
	f.Add([]byte{'R', 0, 0, 0, 8, 0, 0, 0, 0, 'Z', 0, 0, 0, 5, 'I'})
	f.Fuzz(func(t *testing.T, answer []byte) {
		code, err := readAnswer(bytes.NewReader(answer))
		if err != nil && !errors.Is(err, ErrUnreachable) {
			t.Errorf("the error is not classified: %v", err)
		}
		if code != "" && code != SessionOpened && (err != nil || !bytes.Contains(answer, []byte(code))) {
			t.Errorf("the answer %q has the code %q (%v)", answer, code, err)
		}
	})
}
