package command

import (
	"fmt"
	"strings"
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/requests"
)

// saved is what the current sleep has saved so far. The plugin's counters of the same names increase at the same rate, but
// their values depend on how long the plugin has run, and only the plugin knows them. A resource that is not requested is
// absent.
type saved struct {
	CPUSeconds        *float64 `json:"savedCPUSeconds,omitempty"`
	MemoryByteSeconds *float64 `json:"savedMemoryByteSeconds,omitempty"`
}

// saved counts from when no pod was left, by the operator's condition: until then the requests were still held.
func (s seen) saved(state State, now time.Time) saved {
	_, since, _ := s.condition()
	if state != StateAsleep || since.IsZero() {
		return saved{}
	}
	slept := max(now.Sub(since).Seconds(), 0) // the condition's time is from another clock
	of := func(request float64) *float64 {
		if request <= 0 {
			return nil
		}
		total := request * slept
		return &total
	}
	sum := requests.Of(s.cluster)
	return saved{CPUSeconds: of(sum.CPU), MemoryByteSeconds: of(sum.Memory)}
}

// hours formats the savings.
func hours(s saved) string {
	var parts []string
	add := func(total *float64, unit float64, name string) {
		if total != nil {
			parts = append(parts, amount(*total/unit)+" "+name)
		}
	}
	add(s.CPUSeconds, time.Hour.Seconds(), "CPU·h")
	add(s.MemoryByteSeconds, time.Hour.Seconds()*(1<<30), "GiB·h")
	return strings.Join(parts, ", ")
}

// amount has one decimal, or two below one.
func amount(value float64) string {
	switch {
	case value < 0.01:
		return "<0.01"
	case value < 1:
		return fmt.Sprintf("%.2f", value)
	default:
		return fmt.Sprintf("%.1f", value)
	}
}
