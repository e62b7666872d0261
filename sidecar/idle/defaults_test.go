package idle

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestParseDefaults_acceptsWhatAClusterMayHave(t *testing.T) {
	t.Parallel()
	const enabled, minutes, doze = contract.AnnotationEnabled, contract.AnnotationInactivityMinutes, contract.AnnotationDozeMinutes
	for _, row := range []struct {
		rule     string
		have     map[string]string
		defaults map[string]string
		problems []string
	}{
		{"a Namespace without our annotations has no defaults", map[string]string{"team": "a"}, map[string]string{}, nil},
		{"its annotations are defaults", map[string]string{enabled: "true", minutes: "5", "team": "a"}, map[string]string{enabled: "true", minutes: "5"}, nil},
		{
			"an invalid value is a problem", map[string]string{enabled: "yes"}, map[string]string{enabled: "yes"},
			[]string{`annotation xata.io/scale-to-zero-enabled has the value "yes": it must be "true", "false" or "observe"`},
		},
		{
			"they are judged together", map[string]string{doze: "30"}, map[string]string{doze: "30"},
			[]string{`annotation xata.io/scale-to-zero-doze-minutes has the value "30": ` + allowedDoze},
		},
		{
			"what is of one Cluster is no default", map[string]string{contract.AnnotationKeepAwakeUntil: "2026-03-01T18:00:00Z", contract.AnnotationAsleepSince: ""},
			map[string]string{},
			[]string{
				`annotation xata.io/scale-to-zero-asleep-since has the value "": ` + allowedOnCluster,
				`annotation xata.io/scale-to-zero-keep-awake-until has the value "2026-03-01T18:00:00Z": ` + allowedOnCluster,
			},
		},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			defaults, found := ParseDefaults(row.have, time.Now())
			var problems []string
			for _, p := range found {
				problems = append(problems, p.String())
			}
			if diff := cmp.Diff(row.defaults, defaults) + cmp.Diff(row.problems, problems); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParsePolicy_withDefaults(t *testing.T) {
	t.Parallel()
	const copied = `{"xata.io/scale-to-zero-enabled":"true","xata.io/scale-to-zero-inactivity-minutes":"20","xata.io/scale-to-zero-doze-minutes":"10","xata.io/scale-to-zero-ignore":"user=monitor"}`
	for _, row := range []struct {
		rule    string
		own     map[string]string
		want    Policy
		problem string
	}{
		{"the Namespace's are in force", nil, Policy{Enabled: true, OnObjects: true, Threshold: 20 * time.Minute, Doze: 10 * time.Minute}, ""},
		{
			"a Cluster's own wins", map[string]string{contract.AnnotationEnabled: "false", contract.AnnotationInactivityMinutes: "30"},
			Policy{OnObjects: true, Threshold: 30 * time.Minute, Doze: 10 * time.Minute}, "",
		},
		{
			"none is without the default", map[string]string{contract.AnnotationDozeMinutes: contract.None},
			Policy{Enabled: true, OnObjects: true, Threshold: 20 * time.Minute}, "",
		},
		{
			"a doze that is too long for the Cluster's own threshold is none", map[string]string{contract.AnnotationInactivityMinutes: "5"},
			Policy{Enabled: true, OnObjects: true, Threshold: 5 * time.Minute}, "",
		},
		{
			"its own doze has to fit the Namespace's threshold", map[string]string{contract.AnnotationDozeMinutes: "20"},
			Policy{OnObjects: true, Threshold: 20 * time.Minute}, `annotation xata.io/scale-to-zero-doze-minutes has the value "20": ` + allowedDoze,
		},
		{
			"a problem says that the Namespace has it", map[string]string{contract.AnnotationDefaults: `{"xata.io/scale-to-zero-ignore":"user=monitor","xata.io/scale-to-zero-wake":"never"}`},
			Policy{OnObjects: true, Threshold: 30 * time.Minute}, `annotation xata.io/scale-to-zero-wake, set on the Namespace, has the value "never": ` + allowedWake,
		},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			annotations := map[string]string{contract.AnnotationDefaults: copied}
			for key, value := range row.own {
				annotations[key] = value
			}
			policy, problems := ParsePolicy(annotations, time.Now())
			problem := ""
			if len(problems) != 0 {
				problem = problems[0].String()
			}
			if len(policy.Ignore) != 1 {
				t.Errorf("%d patterns, want that of the Namespace", len(policy.Ignore))
			}
			policy.Ignore = nil
			if diff := cmp.Diff(row.want, policy) + cmp.Diff(row.problem, problem); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
