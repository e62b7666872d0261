package cnpgi

import (
	"testing"

	"github.com/cloudnative-pg/cnpg-i/pkg/identity"
	"github.com/google/go-cmp/cmp"
)

func TestGetPluginCapabilities_areThoseThatAreServed(t *testing.T) {
	t.Parallel()
	answer, err := (&Identity{}).GetPluginCapabilities(t.Context(), &identity.GetPluginCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, capability := range answer.GetCapabilities() {
		got = append(got, capability.GetService().GetType().String())
	}
	if diff := cmp.Diff([]string{"TYPE_LIFECYCLE_SERVICE", "TYPE_RECONCILER_HOOKS"}, got); diff != "" {
		t.Errorf("capabilities (-want +got):\n%s", diff)
	}
}
