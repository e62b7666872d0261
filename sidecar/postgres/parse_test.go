package postgres

import (
	"bytes"
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithCancel(t.Context())
}

func FuzzParsePayload(f *testing.F) {
	for _, payload := range []string{"", "activity", "hibernate", "keep-awake 2h", "\x00"} {
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		want := payload == "" || payload == "activity"
		if got := ParsePayload(payload) == KindActivity; got != want {
			t.Errorf("payload %q is activity: %t", payload, got)
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
	f.Add([]byte{'R', 0, 0, 0, 8, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, answer []byte) {
		code, err := readAnswer(bytes.NewReader(answer))
		if code != "" && (err != nil || !bytes.Contains(answer, []byte(code))) {
			t.Errorf("the answer %q has the code %q (%v)", answer, code, err)
		}
	})
}
