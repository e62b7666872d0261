package metrics

import (
	"strings"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cnpg-i/scale-to-zero/plugin/identity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

func TestFleet(t *testing.T) {
	t.Parallel()
	cluster := func(name string, listed bool, annotations map[string]string, conditions ...metav1.Condition) *cnpgv1.Cluster {
		c := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: annotations}}
		if listed {
			c.Spec.Plugins = []cnpgv1.PluginConfiguration{{Name: identity.PluginName}}
		}
		c.Status.Conditions = conditions
		return c
	}
	on := map[string]string{idle.KeyEnabled: "true"}
	asleep := metav1.Condition{Type: idle.KeyHibernation, Status: metav1.ConditionTrue}
	scheme := runtime.NewScheme()
	if err := cnpgv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	clusters := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		cluster("awake", true, on), cluster("asleep", true, map[string]string{idle.KeyEnabled: "true", idle.KeyHibernation: "on"}, asleep),
		cluster("falling", true, map[string]string{idle.KeyEnabled: "true", idle.KeyHibernation: "on"}),
		cluster("mistaken", true, map[string]string{idle.KeyEnabled: "yes"}), cluster("stranger", false, on),
	).Build()
	want := `
# HELP cnpg_scale_to_zero_settings_invalid How many annotations of the cluster are not understood.
# TYPE cnpg_scale_to_zero_settings_invalid gauge
cnpg_scale_to_zero_settings_invalid{cluster="asleep",namespace="shop"} 0
cnpg_scale_to_zero_settings_invalid{cluster="awake",namespace="shop"} 0
cnpg_scale_to_zero_settings_invalid{cluster="falling",namespace="shop"} 0
cnpg_scale_to_zero_settings_invalid{cluster="mistaken",namespace="shop"} 1
`
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewFleet(clusters))
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "cnpg_scale_to_zero_settings_invalid"); err != nil {
		t.Error(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]string{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if state, is := labels["state"]; is && metric.GetGauge().GetValue() == 1 {
				in[labels["cluster"]] += state
			}
		}
	}
	for name, state := range map[string]string{"awake": stateAwake, "asleep": stateAsleep, "falling": stateHibernating, "mistaken": stateDisabled, "stranger": ""} {
		if in[name] != state {
			t.Errorf("%s is %q, want %q", name, in[name], state)
		}
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) != 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}
