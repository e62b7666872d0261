package command

import (
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSaved checks the table for an asleep cluster whose last pod was gone at a given time.
func TestSaved(t *testing.T) {
	t.Parallel()
	goneFor := func(d time.Duration) func(*cnpgv1.Cluster) {
		return func(c *cnpgv1.Cluster) {
			c.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Now().Add(-d))
		}
	}
	unrequested := func(name corev1.ResourceName) func(*cnpgv1.Cluster) {
		return func(c *cnpgv1.Cluster) { delete(c.Spec.Resources.Requests, name) }
	}
	for rule, row := range map[string]struct {
		changes []func(*cnpgv1.Cluster)
		want    string
	}{
		"it counts from when no pod was left, and not from the annotation": {[]func(*cnpgv1.Cluster){asleep, requesting}, "1.5 CPU·h, 3.0 GiB·h"},
		"what is less than one has two digits":                             {[]func(*cnpgv1.Cluster){asleep, requesting, goneFor(6 * time.Minute)}, "0.15 CPU·h, 0.30 GiB·h"},
		"little is not nothing":                                            {[]func(*cnpgv1.Cluster){asleep, requesting, goneFor(time.Second)}, "<0.01 CPU·h, <0.01 GiB·h"},
		"a condition of another clock, that is ahead, counts nothing":      {[]func(*cnpgv1.Cluster){asleep, requesting, goneFor(-time.Minute)}, "<0.01 CPU·h, <0.01 GiB·h"},
		"what is not requested is not saved":                               {[]func(*cnpgv1.Cluster){asleep, requesting, unrequested(corev1.ResourceCPU)}, "3.0 GiB·h"},
		"nor anything by who requests nothing":                             {[]func(*cnpgv1.Cluster){asleep}, ""},
		"since when it sleeps must be known":                               {[]func(*cnpgv1.Cluster){asleep, requesting, func(c *cnpgv1.Cluster) { c.Status.Conditions[0].LastTransitionTime = metav1.Time{} }}, ""},
		"a person's sleep is not by this project":                          {[]func(*cnpgv1.Cluster){byHand, requesting}, ""},
		"while pods are left their requests are held":                      {[]func(*cnpgv1.Cluster){asleep, requesting, condition("DeletingPods")}, ""},
		"nobody saves awake":                                               {[]func(*cnpgv1.Cluster){requesting}, ""},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				now := time.Now()
				s := see(cluster("orders", row.changes...), nil, true, now)
				got := s.saved(s.State(now), now)
				if text := got.hours(); text != row.want {
					t.Errorf("saved is %q, want %q", text, row.want)
				}
				if got.CPUSeconds != nil && *got.CPUSeconds < 0 {
					t.Errorf("saved are %v core-seconds", *got.CPUSeconds)
				}
			})
		})
	}
}
