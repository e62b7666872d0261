package postgres

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithCancel(t.Context())
}

func TestParsePayload(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]Notification{
		"":                    {Kind: KindActivity},
		"activity":            {Kind: KindActivity},
		"release":             {Kind: KindRelease},
		"hibernate":           {Kind: KindHibernate},
		"keep-awake 2h":       {Kind: KindKeepAwake, For: 2 * time.Hour},
		"keep-awake 7200s":    {Kind: KindKeepAwake, For: 2 * time.Hour},
		"keep-awake 168h":     {Kind: KindKeepAwake, For: 168 * time.Hour},
		"keep-awake 168h1s":   {Kind: KindMalformed},
		"keep-awake 0s":       {Kind: KindMalformed},
		"keep-awake -1h":      {Kind: KindMalformed},
		"keep-awake":          {Kind: KindMalformed},
		"keep-awake ":         {Kind: KindMalformed},
		"keep-awake 2":        {Kind: KindMalformed},
		"keep-awake  2h":      {Kind: KindMalformed},
		"hibernate now":       {Kind: KindMalformed},
		"HIBERNATE":           {Kind: KindMalformed},
		" activity":           {Kind: KindMalformed},
		"keep-awake 9e999h":   {Kind: KindMalformed},
		"select pg_sleep(60)": {Kind: KindMalformed},
	} {
		got := ParsePayload(payload)
		if got.Kind != want.Kind || got.For != want.For || (got.Err != nil) != (want.Kind == KindMalformed) {
			t.Errorf("%q is %s %s (%v), want %s %s", payload, got.Kind, got.For, got.Err, want.Kind, want.For)
		}
	}
}

func FuzzParsePayload(f *testing.F) {
	for _, payload := range []string{"", "activity", "hibernate", "keep-awake 2h", "release", "\x00"} {
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		got := ParsePayload(payload)
		if got.Kind == KindKeepAwake && (got.For <= 0 || got.For > 7*24*time.Hour || !strings.HasPrefix(payload, "keep-awake ")) {
			t.Errorf("payload %q keeps awake for %s", payload, got.For)
		}
		if got.Kind == KindHibernate && payload != "hibernate" {
			t.Errorf("payload %q asks for sleep", payload)
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
