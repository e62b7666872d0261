package tests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// The API server and the operator's webhooks accept every example, without unknown fields.
func TestExamplesAreAccepted(t *testing.T) {
	t.Parallel()
	s := begin(t)
	files, err := filepath.Glob("../../manifests/examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		s.must(err)
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			object := &unstructured.Unstructured{}
			s.must(yaml.Unmarshal([]byte(document), &object.Object))
			object.SetNamespace(s.namespace)
			if err := kube.Create(s.ctx, object, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
				t.Errorf("%s: %v", filepath.Base(file), err)
			}
		}
	}
}
