package main

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestOtherInstallation_isOneThatServes(t *testing.T) {
	t.Parallel()
	labels := map[string]string{"app": "scale-to-zero", "cnpg.io/pluginName": "cnpg-i-scale-to-zero.xata.io"}
	for rule, row := range map[string]struct {
		namespace string
		labels    map[string]string
		ready     *bool
		want      string
	}{
		"one whose replica is ready":               {"postgres-operators", labels, ptr.To(true), "postgres-operators"},
		"not its own other replica":                {"cnpg-system", labels, ptr.To(true), ""},
		"nor a Service that an uninstall has left": {"postgres-operators", labels, nil, ""},
		"nor one whose replicas do not start":      {"postgres-operators", labels, ptr.To(false), ""},
		"nor another plugin":                       {"postgres-operators", map[string]string{"cnpg.io/pluginName": "barman-cloud.cloudnative-pg.io"}, ptr.To(true), ""},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Namespace: row.namespace, Name: "scale-to-zero-x", Labels: row.labels},
				Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.7"}, Conditions: discoveryv1.EndpointConditions{Ready: row.ready}}},
			}
			got, err := otherInstallation(t.Context(), fake.NewClientBuilder().WithObjects(slice).Build(), "cnpg-system")
			if err != nil || got != row.want {
				t.Errorf("got %q, %v, want %q", got, err, row.want)
			}
		})
	}
}
