package command

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// statusText writes clusters as text. Columns never become narrower, for the rows that follow.
type statusText struct {
	out interface {
		io.Writer
		Flush() error
	}
	everywhere, wide, colours bool
	// goesOn is set if more rows may follow: the columns then leave room for them.
	goesOn bool
	// notes is set if there is a column for notes, begun once the header has been written.
	notes, begun bool
}

func newStatusText(out io.Writer, everywhere, wide, colours bool) *statusText {
	return &statusText{out: printers.GetNewTabWriter(out), everywhere: everywhere, wide: wide, colours: colours}
}

// write writes clusters, preceded the first time by the header.
func (t *statusText) write(rows []row, now time.Time) {
	if !t.begun {
		t.begun = true
		t.notes = t.goesOn || slices.ContainsFunc(rows, func(r row) bool { return r.remarks() != "" })
		t.line("NAMESPACE", "STATE", plain, t.head())
	}
	for _, r := range rows {
		cells := t.cells(r, now)
		for i := range cells {
			cells[i] = cell(cells[i])
		}
		t.line(cell(r.Namespace), string(r.State), r.State.colour(), cells)
	}
	_ = t.out.Flush() // nothing can be done about an error
}

// line writes a row; the state, which may be coloured, comes after the cluster's name.
func (t *statusText) line(namespace, state, colour string, cells []string) {
	if t.goesOn {
		state = fmt.Sprintf("%-*s", len(StateAsleepByHand), state) // the longest state
	}
	if t.everywhere {
		_, _ = fmt.Fprintf(t.out, "%s\t", namespace)
	}
	_, _ = fmt.Fprintf(t.out, "%s\t%s\t%s\n", cells[0], paint(t.colours, colour, state), strings.Join(cells[1:], "\t"))
}

func (t *statusText) head() []string {
	head := []string{"NAME", "SINCE", "IDLE FOR", "THRESHOLD", "BLOCKED BY", "LAST WOKEN BY", "SAVED"}
	if t.wide {
		head = append(head, "PRIMARY", "DUE IN", "WAKE")
	}
	if t.notes {
		head = append(head, "NOTE")
	}
	return head
}

func (t *statusText) cells(r row, now time.Time) []string {
	since := ""
	if r.Since != nil {
		since = ago(*r.Since, now)
	}
	cells := []string{
		r.Cluster, since, long(r.IdleForSeconds), long(r.ThresholdSeconds), strings.Join(r.BlockedBy, ","), woken(r.LastWake, now),
		hours(r.saved),
	}
	if t.wide {
		due := ""
		if r.Due != nil {
			due = duration.HumanDuration(max(r.Due.Sub(now), 0))
		}
		cells = append(cells, r.Primary, due, r.Wake)
	}
	if t.notes {
		cells = append(cells, r.remarks())
	}
	return cells
}

// woken formats in one line who woke a cluster.
func woken(w *contract.LastWake, now time.Time) string {
	if w == nil {
		return ""
	}
	who := w.By
	if w.User != "" {
		who += fmt.Sprintf(" (%s@%s)", w.User, cmp.Or(w.Database, w.User))
	}
	return who + ", " + ago(w.At, now)
}
