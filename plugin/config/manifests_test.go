package config

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// The manifests cannot know the sidecar's image: unmodified, they prevent the start instead of injecting an image that cannot
// be pulled.
func TestTheManifestsAloneNameNoSidecar(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"base/deployment.yaml", "components/operator-socket/operator.yaml"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			given := environment(t, filepath.Join("..", "..", "manifests", file))
			given["SERVER_ADDRESS"], given["PLUGIN_SOCKET_DIR"] = "", t.TempDir() // certificates and socket do not exist here
			start := func(change map[string]string) error {
				_, err := Parse(nil, func(name string) (string, bool) {
					if value, set := change[name]; set {
						return value, true
					}
					value, set := given[name]
					return value, set
				}, io.Discard)
				return err
			}
			const want = `SIDECAR_IMAGE is "": it must be the reference of an image`
			if err := start(nil); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("it starts with %v, want %s", err, want)
			}
			if err := start(map[string]string{"SIDECAR_IMAGE": "example.org/sidecar:v1"}); err != nil {
				t.Errorf("it does not start with an image: %v", err)
			}
		})
	}
}

// environment returns the environment of the plugin's container, without what only a pod knows.
func environment(t *testing.T, path string) map[string]string {
	t.Helper()
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var deployment appsv1.Deployment
	if err := yaml.UnmarshalStrict(body, &deployment); err != nil {
		t.Fatal(err)
	}
	pod, given := deployment.Spec.Template.Spec, map[string]string{}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if c.Name != "cnpg-i-scale-to-zero" {
			continue
		}
		for _, variable := range c.Env {
			if variable.ValueFrom == nil {
				given[variable.Name] = variable.Value
			}
		}
	}
	if _, set := given["SIDECAR_IMAGE"]; !set {
		t.Fatalf("%s does not set SIDECAR_IMAGE", path)
	}
	return given
}
