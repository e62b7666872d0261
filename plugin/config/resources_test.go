package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestSidecarResources_followThePodsClassUnlessSet(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule                  string
		change                map[string]string
		burstable, guaranteed string // requests
		limits                string
		keep                  bool
	}{
		{"without settings a sidecar requests what it uses, and in a Guaranteed pod its limit", nil, "10m 32Mi", "100m 64Mi", "100m 64Mi", true},
		{"a request that is set holds in every pod", map[string]string{"SIDECAR_CPU_REQUEST": "50m"}, "50m 32Mi", "50m 64Mi", "100m 64Mi", false},
		{"one that equals its limit keeps the class", map[string]string{"SIDECAR_CPU_REQUEST": "0.1", "SIDECAR_MEMORY_REQUEST": "64Mi"}, "100m 64Mi", "100m 64Mi", "100m 64Mi", true},
		{"limits that are set leave the requests", map[string]string{"SIDECAR_CPU_LIMIT": "1", "SIDECAR_MEMORY_LIMIT": "128Mi"}, "10m 32Mi", "1 128Mi", "1 128Mi", true},
		{"a request is never more than a limit that is set", map[string]string{"SIDECAR_CPU_LIMIT": "5m", "SIDECAR_MEMORY_LIMIT": "32Mi"}, "5m 32Mi", "5m 32Mi", "5m 32Mi", true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			r := &reader{values: map[string]string{"SIDECAR_CPU_LIMIT": "100m", "SIDECAR_MEMORY_LIMIT": "64Mi"}}
			for name, value := range row.change {
				r.values[name] = value
			}
			got := r.sidecarResources()
			if len(r.problems) != 0 {
				t.Fatal(r.problems)
			}
			words := func(l corev1.ResourceList) string { return l.Cpu().String() + " " + l.Memory().String() }
			want := []string{row.burstable, row.limits, row.guaranteed, row.limits}
			has := []string{words(got.Burstable.Requests), words(got.Burstable.Limits), words(got.Guaranteed.Requests), words(got.Guaranteed.Limits)}
			if diff := cmp.Diff(want, has); diff != "" {
				t.Errorf("requests and limits (-want +got):\n%s", diff)
			}
			if got.KeepGuaranteed() != row.keep {
				t.Errorf("the class is kept: %t, want %t", got.KeepGuaranteed(), row.keep)
			}
		})
	}
}

func TestParse_limitsSidecarsAsBefore(t *testing.T) {
	t.Parallel()
	for _, s := range settings {
		want, ok := map[string]string{"SIDECAR_CPU_LIMIT": "100m", "SIDECAR_MEMORY_LIMIT": "64Mi"}[s.variable]
		if !ok {
			continue
		}
		has, least := resource.MustParse(s.otherwise), resource.MustParse(want)
		if has.Cmp(least) < 0 {
			t.Errorf("%s is %s, want at least %s", s.variable, s.otherwise, want)
		}
	}
}
