package cluster

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Progress writes what is being done, with the time since the beginning.
type Progress struct {
	out   io.Writer
	start time.Time
	mutex sync.Mutex
}

// NewProgress begins now.
func NewProgress(out io.Writer) *Progress { return &Progress{out: out, start: time.Now()} }

// Say writes one line.
func (p *Progress) Say(format string, arguments ...any) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	_, _ = fmt.Fprintf(p.out, "%7.1fs  %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, arguments...))
}
