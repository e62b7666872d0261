package estimate

import (
	"strings"
	"testing"
	"time"
)

// drawn is a history with a sample each minute: '.' is idle, '#' in use, '?' unknown.
func drawn(picture string) History {
	h := History{step: time.Minute}
	for _, sign := range picture {
		h.states = append(h.states, map[rune]state{'.': idle, '#': inUse, '?': unknown}[sign])
	}
	return h
}

func TestSleep(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, picture string
		known, asleep int // minutes
		wakes         int
	}{
		{"nothing is known of nothing", "", 0, 0, 0},
		{"one sample lasts no time", ".", 0, 0, 0},
		{"what is idle for less than the threshold stays awake", "....", 3, 0, 0},
		{"at the threshold it sleeps, which use ends at once", "......#", 6, 0, 1},
		{"and after it the time counts", "........", 7, 2, 0},
		{"a sleep that lasts to the end is no wake", "#........", 8, 2, 0},
		{"a client wakes it, and the clock starts anew", "#........#......", 15, 2, 1},
		{"each sleep that a client ends is a wake", "........#........#", 17, 4, 2},
		{"who is always in use never sleeps", "##########", 9, 0, 0},
		{"short pauses are no sleep", "#..#...#....#.....#", 18, 0, 0},
		{"unknown is never idle", "??????????", 0, 0, 0},
		{"and ends a sleep without a wake", "........?#", 7, 2, 0},
		{"and has the clock start anew", "....?....", 6, 0, 0},
		{"a wake needs use right after the sleep", "........?.#", 8, 2, 0},
	} {
		h := drawn(row.picture)
		want := Sleep{time.Duration(row.asleep) * time.Minute, row.wakes}
		if got := h.Sleep(5 * time.Minute); got != want {
			t.Errorf("%s: %+v, want %+v", row.rule, got, want)
		}
		if got := h.Known(); got != time.Duration(row.known)*time.Minute {
			t.Errorf("%s: known for %s, want %d minutes", row.rule, got, row.known)
		}
	}
}

// naive finds the idle stretches by their pictures.
func naive(picture string, threshold int) (sleep Sleep) {
	for known := range strings.SplitSeq(picture, "?") {
		stretches := strings.Split(known, "#")
		for i, stretch := range stretches {
			if len(stretch) == 0 || len(stretch)-1 < threshold {
				continue
			}
			sleep.Asleep += time.Duration(len(stretch)-1-threshold) * time.Second
			if i < len(stretches)-1 { // a client came
				sleep.Wakes++
			}
		}
	}
	return sleep
}

func FuzzSleep(f *testing.F) {
	f.Add([]byte("........#........?....#"), byte(5))
	f.Add([]byte("#..#...?????#"), byte(1))
	f.Fuzz(func(t *testing.T, noise []byte, threshold byte) {
		picture := make([]byte, len(noise))
		for i, b := range noise {
			picture[i] = ".....##?"[b%8]
		}
		h := drawn(string(picture))
		h.step = time.Second
		want, known := naive(string(picture), int(threshold)), h.Known()
		got := h.Sleep(time.Duration(threshold) * time.Second)
		if got != want {
			t.Errorf("%s at %d: %+v, want %+v", picture, threshold, got, want)
		}
		longer := h.Sleep(time.Duration(threshold)*time.Second + time.Second)
		if got.Asleep > known || longer.Asleep > got.Asleep || longer.Wakes > got.Wakes {
			t.Errorf("%s: %s is known, %+v, but a longer threshold %+v", picture, known, got, longer)
		}
	})
}
