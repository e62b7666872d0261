package probe

import (
	"testing"
	"time"
)

func TestInterval_growsWithTheTimeThatAStartTakes(t *testing.T) {
	t.Parallel()
	for since, want := range map[time.Duration]time.Duration{
		0: 20 * time.Millisecond, 1999 * time.Millisecond: 20 * time.Millisecond, 2 * time.Second: 100 * time.Millisecond,
		4999 * time.Millisecond: 100 * time.Millisecond, 5 * time.Second: time.Second, time.Hour: time.Second,
	} {
		if got := Interval(since); got != want {
			t.Errorf("after %s: %s, want %s", since, got, want)
		}
	}
}
