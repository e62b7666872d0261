package chart

import (
	"path/filepath"
	"strings"
	"testing"
)

// A released chart names the images of its release by itself, and is what the directory is.
func TestPackage_namesTheImages(t *testing.T) {
	t.Parallel()
	output := t.TempDir()
	file, err := Package(directory, "registry.example.org/team", "v1.2.3-rc.1", output)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(output, "cnpg-i-scale-to-zero-1.2.3-rc.1.tgz"); file != want {
		t.Errorf("the file is %s, want %s", file, want)
	}
	packaged, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"artifacthub.io/prerelease": "true",
		"artifacthub.io/images": "- image: registry.example.org/team/cnpg-i-scale-to-zero:v1.2.3-rc.1\n  name: plugin\n" +
			"- image: registry.example.org/team/cnpg-i-scale-to-zero-sidecar:v1.2.3-rc.1\n  name: sidecar\n",
	} {
		if got := packaged.Metadata.Annotations[key]; got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	release, err := Render(t.Context(), packaged, "cnpg-system", map[string]any{"policies": map[string]any{"annotations": true}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"image: \"registry.example.org/team/cnpg-i-scale-to-zero:v1.2.3-rc.1\"\n", "value: \"registry.example.org/team/cnpg-i-scale-to-zero-sidecar:v1.2.3-rc.1\"\n",
		"name: cnpg-scale-to-zero-annotations\n", "helm.sh/chart: cnpg-i-scale-to-zero-1.2.3-rc.1\n",
	} {
		if !strings.Contains(release.Manifest, want) {
			t.Errorf("the release has no %q", want)
		}
	}
}

// A tag that is no semantic version is no version of a chart.
func TestPackage_refusesOtherTags(t *testing.T) {
	t.Parallel()
	if file, err := Package(directory, "registry.example.org", "latest", t.TempDir()); err == nil || !strings.Contains(err.Error(), `"latest"`) {
		t.Errorf("it gives %s, %v", file, err)
	}
}
