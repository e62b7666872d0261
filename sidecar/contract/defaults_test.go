package contract_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestEffective_aClustersOwnAnnotationWins(t *testing.T) {
	t.Parallel()
	const enabled, minutes = contract.AnnotationEnabled, contract.AnnotationInactivityMinutes
	copied, err := contract.EncodeDefaults(map[string]string{enabled: "true", minutes: "5"})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		rule       string
		have, want map[string]string
	}{
		{"without defaults the Cluster's are in force", map[string]string{minutes: "30"}, map[string]string{minutes: "30"}},
		{
			"what the Cluster has not is the Namespace's",
			map[string]string{contract.AnnotationDefaults: copied},
			map[string]string{contract.AnnotationDefaults: copied, enabled: "true", minutes: "5"},
		},
		{
			"what it has is its own",
			map[string]string{contract.AnnotationDefaults: copied, minutes: ""},
			map[string]string{contract.AnnotationDefaults: copied, enabled: "true", minutes: ""},
		},
		{
			"what cannot be decoded is no default",
			map[string]string{contract.AnnotationDefaults: "{", minutes: "30"},
			map[string]string{contract.AnnotationDefaults: "{", minutes: "30"},
		},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(row.want, contract.Effective(row.have)); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
		})
	}
}
