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

// printable replaces control characters in text from elsewhere, such as a client's application name, which could otherwise
// control the terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// cell formats a text for a table: a single line, never empty.
func cell(text string) string {
	text = strings.ReplaceAll(printable(text), "\n", " ")
	if text == "" {
		return "-"
	}
	return text
}

// ago formats how long ago a time is.
func ago(at, now time.Time) string {
	if at.IsZero() {
		return ""
	}
	return duration.HumanDuration(max(now.Sub(at), 0)) + " ago"
}

// long formats a number of seconds.
func long(seconds *float64) string {
	if seconds == nil {
		return ""
	}
	return duration.HumanDuration(time.Duration(max(*seconds, 0) * float64(time.Second)))
}

// All colours have the same length, which keeps table columns aligned.
const (
	plain  = "\x1b[39m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	blue   = "\x1b[34m"
	reset  = "\x1b[0m"
)

// colourful reports whether to use colours: on a terminal that supports them, unless NO_COLOR is set (no-color.org).
func colourful(out io.Writer, getenv func(string) string) bool {
	file, ok := out.(*os.File)
	return ok && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd())) // a file descriptor is small
}

// paint colours a text.
func paint(colours bool, colour, text string) string {
	if !colours {
		return text
	}
	return colour + text + reset
}

// colour returns the colour of a state.
func (s State) colour() string {
	switch s {
	case StateAwake:
		return green
	case StateAsleep, StateDozing:
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
