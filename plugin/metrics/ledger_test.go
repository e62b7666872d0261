package metrics

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestLedger reads what is counted of a cluster whose state is seen at some times, in minutes since the plugin began.
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
				a = l.book(c, now)
				l.close()
			}
			want := (row.want * time.Minute).Seconds()
			if a.slept != want || a.cpu != want || a.memory != want*(2<<30) { // 2 × 500m and 2 × 1Gi
				t.Errorf("slept %v s, %v core-s, %v byte-s; want %v s", a.slept, a.cpu, a.memory, want)
			}
		})
	}
}

func TestRequests(t *testing.T) {
	t.Parallel()
	list := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	for rule, row := range map[string]struct {
		resources corev1.ResourceRequirements
		want      float64
	}{
		"those of every instance":             {corev1.ResourceRequirements{Requests: list("250m")}, 0.5},
		"a limit stands for a request":        {corev1.ResourceRequirements{Limits: list("2")}, 4},
		"a request is smaller than its limit": {corev1.ResourceRequirements{Requests: list("1"), Limits: list("2")}, 2},
		"none":                                {corev1.ResourceRequirements{}, 0},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			c := cluster("blue", on())
			c.Spec.Resources = row.resources
			if got := requestsOf(c); got.cpu != row.want || got.memory != 0 {
				t.Errorf("got %+v, want %v cores and no memory", got, row.want)
			}
		})
	}
}

func TestAConditionWithoutATimeTellsNoBeginning(t *testing.T) {
	t.Parallel()
	if since, is := asleepSince(cluster("blue", on(), asleep(time.Time{}))); is {
		t.Errorf("asleep since %s", since)
	}
}
