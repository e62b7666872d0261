package metrics

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

// TestLedger checks the totals of a cluster observed at several times, in minutes since the plugin started.
func TestLedger(t *testing.T) {
	t.Parallel()
	type look struct{ at, since time.Duration } // since: awake
	const awake = time.Duration(1 << 62)
	for rule, row := range map[string]struct {
		looks []look
		want  time.Duration
	}{
		"a cluster that was never asleep has slept for no time":       {[]look{{0, awake}, {60, awake}}, 0},
		"it counts from the sleep's own beginning":                    {[]look{{10, awake}, {20, 13}}, 7},
		"and goes on from look to look":                               {[]look{{20, 13}, {21, 13}, {40, 13}}, 27},
		"what was before this process is another's":                   {[]look{{5, -600}}, 5},
		"what came after the last look of a sleep is not known":       {[]look{{20, 13}, {30, awake}}, 7},
		"of two sleeps, the time between does not count":              {[]look{{20, 10}, {40, 35}}, 15},
		"a condition of another clock, that is ahead, counts nothing": {[]look{{10, 11}}, 0},
		"looks at the same time count once":                           {[]look{{20, 10}, {20, 10}, {20, 10}}, 10},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			l := newLedger(noon)
			a := &account{}
			for _, look := range row.looks {
				c := cluster("blue", on())
				if look.since != awake {
					c.Status.Conditions = []metav1.Condition{asleep(noon.Add(look.since * time.Minute))}
				}
				now := noon.Add(look.at * time.Minute)
				a = l.book(c, time.Time{}, plan.Requests{}, now)
				l.close()
			}
			want := (row.want * time.Minute).Seconds()
			if a.slept != want || a.cpu != want || a.memory != want*(2<<30) { // 2 × 500m and 2 × 1Gi
				t.Errorf("slept %v s, %v core-s, %v byte-s; want %v s", a.slept, a.cpu, a.memory, want)
			}
		})
	}
}

// TestLedger_countsSidecarsWhileAwake checks the cost of a sidecar that requests a core and a byte, in minutes.
func TestLedger_countsSidecarsWhileAwake(t *testing.T) {
	t.Parallel()
	type look struct{ at, since time.Duration } // since: awake
	const awake = time.Duration(1 << 62)
	for rule, row := range map[string]struct {
		looks []look
		want  time.Duration
	}{
		"a cluster that sleeps costs nothing":                          {[]look{{10, 5}, {20, 5}}, 0},
		"one that is awake does from look to look":                     {[]look{{10, awake}, {20, awake}, {25, awake}}, 15},
		"what was before the first look is not known":                  {[]look{{60, awake}}, 0},
		"it costs until its sleep begins":                              {[]look{{10, awake}, {20, 13}, {30, 13}}, 3},
		"when it woke between two looks is not known":                  {[]look{{10, 5}, {20, awake}, {30, awake}}, 10},
		"a condition of another clock, that is ahead, changes nothing": {[]look{{10, awake}, {20, 25}}, 10},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			l := newLedger(noon)
			a := &account{}
			for _, look := range row.looks {
				c := cluster("blue", on())
				if look.since != awake {
					c.Status.Conditions = []metav1.Condition{asleep(noon.Add(look.since * time.Minute))}
				}
				a = l.book(c, time.Time{}, plan.Requests{CPU: 1, Memory: 1}, noon.Add(look.at*time.Minute))
				l.close()
			}
			if want := (row.want * time.Minute).Seconds(); a.sidecarCPU != want || a.sidecarMemory != want {
				t.Errorf("%v core-s, %v byte-s; want %v", a.sidecarCPU, a.sidecarMemory, want)
			}
		})
	}
}

// TestLedger_countsDozesWithoutSavings checks a cluster that dozes, in minutes, with a sidecar that requests a core.
func TestLedger_countsDozesWithoutSavings(t *testing.T) {
	t.Parallel()
	type look struct{ at, since time.Duration } // since: awake
	const awake = time.Duration(1 << 62)
	for rule, row := range map[string]struct {
		looks []look
		want  time.Duration
	}{
		"it counts from the doze's own beginning":        {[]look{{10, awake}, {20, 13}, {30, 13}}, 17},
		"what was before this process is another's":      {[]look{{5, -600}, {10, -600}}, 10},
		"what came after the last look is not known":     {[]look{{20, 13}, {30, awake}}, 7},
		"a time of another clock, ahead, counts nothing": {[]look{{10, 11}}, 0},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			l := newLedger(noon)
			a := &account{}
			for _, look := range row.looks {
				since := time.Time{}
				if look.since != awake {
					since = noon.Add(look.since * time.Minute)
				}
				a = l.book(cluster("blue", on()), since, plan.Requests{CPU: 1}, noon.Add(look.at*time.Minute))
				l.close()
			}
			if want := (row.want * time.Minute).Seconds(); a.dozed != want || a.slept != 0 || a.cpu != 0 || a.memory != 0 {
				t.Errorf("dozed %v s, slept %v s, saved %v core-s and %v byte-s; want %v s", a.dozed, a.slept, a.cpu, a.memory, want)
			}
			first, last := row.looks[0].at, row.looks[len(row.looks)-1].at
			if want := ((last - first) * time.Minute).Seconds(); a.sidecarCPU != want {
				t.Errorf("the sidecar cost %v core-s, want %v", a.sidecarCPU, want)
			}
		})
	}
}

func TestAConditionWithoutATimeTellsNoBeginning(t *testing.T) {
	t.Parallel()
	if since, ok := asleepSince(cluster("blue", on(), asleep(time.Time{}))); ok {
		t.Errorf("asleep since %s", since)
	}
}
