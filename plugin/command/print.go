package command

import (
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/util/duration"
)

// printable keeps what others wrote, a client's name for itself not least, from telling the terminal what to do.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// cell is a text for a table: one line, and something.
func cell(text string) string {
	text = strings.ReplaceAll(printable(text), "\n", " ")
	if text == "" {
		return "-"
	}
	return text
}

// ago says how long ago a time is.
func ago(at, now time.Time) string {
	if at.IsZero() {
		return ""
	}
	return duration.HumanDuration(max(now.Sub(at), 0)) + " ago"
}

// long says how many seconds there are, for people.
func long(seconds *float64) string {
	if seconds == nil {
		return ""
	}
	return duration.HumanDuration(time.Duration(max(*seconds, 0) * float64(time.Second)))
}

// Colours are all of the same length, so that a table stays one.
const (
	plain  = "\x1b[39m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	blue   = "\x1b[34m"
	reset  = "\x1b[0m"
)

// colourful reports whether colours are wanted: on a terminal that knows them, unless NO_COLOR is set (no-color.org).
func colourful(out io.Writer, getenv func(string) string) bool {
	file, ok := out.(*os.File)
	return ok && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd())) //nolint:gosec // a file descriptor is small
}

// paint puts a colour on a text.
func paint(colours bool, colour, text string) string {
	if !colours {
		return text
	}
	return colour + text + reset
}

// colour is that of a state.
func (s State) colour() string {
	switch s {
	case StateAwake:
		return green
	case StateAsleep:
		return blue
	case StateAsleepByHand:
		return yellow
	case StateGoing, StateWaking:
		return yellow
	case StateDisabled:
		return plain
	}
	return red
}

func unlessZero(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}
