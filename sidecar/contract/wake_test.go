package contract

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLastWake(t *testing.T) {
	t.Parallel()
	const written = `{"at":"2026-03-01T12:00:00Z","by":"10.0.0.9","user":"app","database":"shop","service":"orders-rw"}`
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	wake := LastWake{At: now, By: "10.0.0.9", User: "app", Database: "shop", Service: "orders-rw"}
	other := wake
	other.At = now.Add(999 * time.Millisecond).In(time.FixedZone("CET", 3600))
	if got, err := other.Encode(); err != nil || got != written {
		t.Errorf("written: %s, %v", got, err)
	}
	for _, row := range []struct {
		rule, value string
		want        LastWake
		err         error
	}{
		{"what is written is read", written, wake, nil},
		{"what TLS hides is absent", `{"at":"2026-03-01T13:00:00+01:00","by":"10.0.0.9","service":"orders-rw"}`, LastWake{At: now, By: "10.0.0.9", Service: "orders-rw"}, nil},
		{"a newer program may add fields", `{"at":"2026-03-01T12:00:00Z","by":"10.0.0.9","took":"2s"}`, LastWake{At: now, By: "10.0.0.9"}, nil},
		{"without a time it is none", `{"by":"10.0.0.9"}`, LastWake{}, ErrInvalidLastWake},
		{"nor without somebody", `{"at":"2026-03-01T12:00:00Z"}`, LastWake{}, ErrInvalidLastWake},
		{"nor is anything else", "yesterday", LastWake{}, ErrInvalidLastWake},
		{"what is too long is not read", `{"at":"2026-03-01T12:00:00Z","by":"` + strings.Repeat("x", maxLastWakeBytes) + `"}`, LastWake{}, ErrInvalidLastWake},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			got, err := ParseLastWake(row.value)
			if !errors.Is(err, row.err) {
				t.Errorf("error: %v, want %v", err, row.err)
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("wake (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzParseLastWake tests that parsed values have a time and an address, and survive encoding and parsing, except for the
// fraction of a second. People can write the annotation too.
func FuzzParseLastWake(f *testing.F) {
	f.Add(`{"at":"2026-03-01T12:00:00.5Z","by":"10.0.0.9","user":"a\u001b[31m","database":"b","service":"orders-rw"}`)
	f.Add(`{"at":"9999-12-31T23:59:59-23:59","by":"x"}`)
	f.Add("{}")
	f.Fuzz(func(t *testing.T, value string) {
		read, err := ParseLastWake(value)
		if err != nil {
			if !errors.Is(err, ErrInvalidLastWake) {
				t.Errorf("another error: %v", err)
			}
			return
		}
		if read.By == "" || read.At.IsZero() {
			t.Errorf("%q is read as %+v", value, read)
		}
		written, err := read.Encode()
		if err != nil {
			return // a year that RFC 3339 does not have, in UTC
		}
		again, err := ParseLastWake(written)
		read.At = read.At.Truncate(time.Second)
		if len(written) <= maxLastWakeBytes && !read.At.IsZero() && (err != nil || again != read) {
			t.Errorf("%q is written as %q and read again as %+v, %v", value, written, again, err)
		}
	})
}
