package idle

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Window is a time of the week in which a cluster never sleeps.
type Window struct {
	// Days are the days on which the window begins, by [time.Weekday].
	Days [7]bool
	// From and To are minutes of the day in local time of Zone. To is at most 24:00; if it is not after From, it is on
	// the next day.
	From, To int
	// Zone is the time zone.
	Zone *time.Location
}

// Opening is a time during which a window is open.
type Opening struct{ Begin, End time.Time }

// WakesWithin is how long before a window opens the plugin wakes the cluster for it at the earliest.
const WakesWithin = 10 * time.Minute

const (
	minutesOfDay = 24 * 60
	// maximumWindows limits the list: a week has few enough hours.
	maximumWindows = 64
)

// window matches one item of the list: days, a time range, a zone.
var window = regexp.MustCompile(`^(\S+) +([0-2][0-9]:[0-5][0-9])-([0-2][0-9]:[0-5][0-9]) +(\S+)$`)

var weekdays = []string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"}

// parseWindows parses a list such as "Mon-Fri 08:00-18:00 Europe/Berlin; Sat,Sun 10:00-12:00 UTC". The error names the
// invalid item.
func parseWindows(value string) ([]Window, error) {
	var windows []Window
	zones := map[string]*time.Location{} // to load one takes ten times as long as to parse the rest of an item
	for item := range strings.SplitSeq(value, ";") {
		item = strings.TrimSpace(item)
		parsed, err := parseWindow(item, zones)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", item, err)
		}
		if windows = append(windows, parsed); len(windows) > maximumWindows {
			return nil, fmt.Errorf("more than %d windows", maximumWindows)
		}
	}
	return windows, nil
}

func parseWindow(item string, zones map[string]*time.Location) (Window, error) {
	parts := window.FindStringSubmatch(item)
	if parts == nil {
		return Window{}, fmt.Errorf("not of the form DAYS HH:MM-HH:MM ZONE")
	}
	var w Window
	var err error
	if w.Days, err = parseDays(parts[1]); err != nil {
		return Window{}, err
	}
	if w.From, err = parseMinute(parts[2]); err != nil {
		return Window{}, err
	}
	if w.To, err = parseMinute(parts[3]); err != nil {
		return Window{}, err
	}
	switch {
	case w.From == minutesOfDay:
		return Window{}, fmt.Errorf("24:00 is only an end")
	case w.From == w.To:
		return Window{}, fmt.Errorf("the beginning and the end are the same; a whole day is 00:00-24:00")
	case parts[4] == "Local":
		return Window{}, fmt.Errorf("%q is not a time zone's name", parts[4])
	}
	if w.Zone = zones[parts[4]]; w.Zone == nil {
		if w.Zone, err = time.LoadLocation(parts[4]); err != nil {
			return Window{}, fmt.Errorf("%q is not a time zone's name", parts[4])
		}
		zones[parts[4]] = w.Zone
	}
	return w, nil
}

// parseDays parses days and ranges of days, such as "Mon-Fri" or "Sat,Mon-Wed". A range may wrap around the end of the
// week.
func parseDays(text string) (days [7]bool, err error) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, to := weekday(first), weekday(last)
		if from < 0 || to < 0 {
			return days, fmt.Errorf("%q is not a day; days are %s", part, strings.Join(weekdays, ", "))
		}
		for day := from; ; day = (day + 1) % 7 {
			days[day] = true
			if day == to {
				break
			}
		}
	}
	return days, nil
}

func weekday(text string) int {
	for i, name := range weekdays {
		if name == text {
			return i
		}
	}
	return -1
}

func parseMinute(text string) (int, error) {
	hour, _ := strconv.Atoi(text[:2])
	minute, _ := strconv.Atoi(text[3:])
	if total := 60*hour + minute; total <= minutesOfDay {
		return total, nil
	}
	return 0, fmt.Errorf("%q is not a time of day", text)
}

// around returns when the window is open: the times that contain now, and the next one.
func (w Window) around(now time.Time) []Opening {
	var found []Opening
	local := now.In(w.Zone)
	for offset := -1; offset <= 7; offset++ {
		day := time.Date(local.Year(), local.Month(), local.Day()+offset, 12, 0, 0, 0, w.Zone)
		if !w.Days[day.Weekday()] {
			continue
		}
		to := w.To
		if to <= w.From {
			to += minutesOfDay
		}
		begin, _ := w.at(day, w.From)
		_, end := w.at(day, to)
		if !now.Before(end) || !begin.Before(end) { // over, or skipped when daylight saving time begins
			continue
		}
		if found = append(found, Opening{Begin: begin, End: end}); now.Before(begin) {
			break
		}
	}
	return found
}

// at returns the first and the last moment at which clocks in the zone show that minute of the day. They differ if it
// is repeated when daylight saving time ends; if it is skipped when that begins, both are the moment of the change.
func (w Window) at(day time.Time, minute int) (first, last time.Time) {
	wall := time.Date(day.Year(), day.Month(), day.Day(), 0, minute, 0, 0, time.UTC)
	const aDay = 24 * time.Hour
	first, before := w.shown(wall, wall.Add(-aDay))
	last, after := w.shown(wall, wall.Add(aDay))
	switch {
	case before && after:
		return first, last
	case before:
		return first, first
	case after:
		return last, last
	default:
		change, _ := first.ZoneBounds()
		return change, change
	}
}

// shown returns when clocks show the wall time if they have the offset that they have at another time, and whether they
// then do.
func (w Window) shown(wall, other time.Time) (at time.Time, ok bool) {
	_, offset := other.In(w.Zone).Zone()
	at = wall.Add(-time.Duration(offset) * time.Second).In(w.Zone)
	_, got := at.Zone()
	return at, got == offset
}

// Openings returns when the keep-awake windows are open: the times that contain now, and the next one of each window.
func (p Policy) Openings(now time.Time) []Opening {
	var found []Opening
	for _, w := range p.KeepAwake {
		found = append(found, w.around(now)...)
	}
	return found
}

// NextOpening returns when a keep-awake window opens next; zero without windows.
func (p Policy) NextOpening(now time.Time) (next time.Time) {
	for _, opening := range p.Openings(now) {
		if opening.Begin.After(now) && (next.IsZero() || opening.Begin.Before(next)) {
			next = opening.Begin
		}
	}
	return next
}

// inWindow reports whether a keep-awake window forbids sleep, and returns when that may change; zero without windows. A
// window that wakes the cluster forbids it already for WakesWithin before it opens.
func (p Policy) inWindow(now time.Time) (inside bool, change time.Time) {
	for _, opening := range p.Openings(now) {
		at := opening.Begin
		if p.OnWindow {
			at = at.Add(-WakesWithin)
		}
		if !now.Before(at) {
			inside, at = true, opening.End
		}
		if change.IsZero() || at.Before(change) {
			change = at
		}
	}
	return inside, change
}
