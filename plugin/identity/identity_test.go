package identity

import (
	"testing"

	"github.com/cloudnative-pg/cnpg-i/pkg/identity"
	"github.com/google/go-cmp/cmp"
)

func TestWhatIsDeclared(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule      string
		validates bool
		want      []string
	}{
		{"the Operator service is not, unless it is asked for", false, []string{"TYPE_LIFECYCLE_SERVICE", "TYPE_RECONCILER_HOOKS"}},
		{"it is when it is asked for", true, []string{"TYPE_LIFECYCLE_SERVICE", "TYPE_RECONCILER_HOOKS", "TYPE_OPERATOR_SERVICE"}},
	} {
		answer, err := (&Server{Validates: row.validates}).GetPluginCapabilities(t.Context(), &identity.GetPluginCapabilitiesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, capability := range answer.GetCapabilities() {
			got = append(got, capability.GetService().GetType().String())
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", row.rule, diff)
		}
	}
}
