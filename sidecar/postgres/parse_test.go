package postgres

import (
	"context"
	"strings"
	"testing"
	"time"
)

func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithCancel(t.Context())
}

func TestParsePayload_refusesWhatIsNotUnderstood(t *testing.T) {
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
