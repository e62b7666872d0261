package install

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Flux replaces every ${name} in what it applies, with nothing if it does not know the name. An object that needs such text for another
// reader must turn that off.
func TestFluxSubstitutesNothing(t *testing.T) {
	t.Parallel()
	rendered := []string{with(t, "cert-manager"), with(t, "monitoring"), with(t, "network-policy"), with(t, "policies"), with(t, "self-provisioned-certificates")}
	for document := range strings.SplitSeq(strings.Join(rendered, "\n---\n"), "\n---\n") {
		var object unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(document, "${") && object.GetAnnotations()["kustomize.toolkit.fluxcd.io/substitute"] != "disabled" {
			t.Errorf("%s %s has variables that Flux would take for its own", object.GetKind(), object.GetName())
		}
	}
}
