// Package chart renders the project's Helm chart and packages it for a release.
package chart

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	release "helm.sh/helm/v4/pkg/release/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/install"
)

const (
	// Release is the name under which the documentation and the tests install the chart.
	Release = "scale-to-zero"
	// noRegistry is the value that a released chart has filled in.
	noRegistry = `registry: ""`
	valuesFile = "values.yaml"
	// oldest is the first Kubernetes that the chart supports; nothing in it depends on the version.
	oldest = "v1.30.0"
	// imagesOf are a released chart's images, of the plugin's name and the tag.
	imagesOf = "- image: %[1]s:%[2]s\n  name: plugin\n- image: %[1]s-sidecar:%[2]s\n  name: sidecar\n"
)

// Load reads the chart of a directory.
func Load(directory string) (*chartv2.Chart, error) {
	loaded, err := loader.Load(directory)
	if err != nil {
		return nil, fmt.Errorf("load the chart of %s: %w", directory, err)
	}
	return loaded, nil
}

// Render is what an installation of the chart would create, and the notes that it would print.
func Render(ctx context.Context, loaded *chartv2.Chart, namespace string, values map[string]any) (*release.Release, error) {
	install := action.NewInstall(action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler)))
	install.ReleaseName, install.Namespace, install.DryRunStrategy = Release, namespace, action.DryRunClient
	install.KubeVersion = &common.KubeVersion{Version: oldest, Major: "1", Minor: "30"}
	rendered, err := install.RunWithContext(ctx, loaded, values)
	if err != nil {
		return nil, fmt.Errorf("render the chart: %w", err)
	}
	found, ok := rendered.(*release.Release)
	if !ok {
		return nil, fmt.Errorf("the rendered release is a %T", rendered)
	}
	return found, nil
}

// Package writes the chart of a release into a directory: it has the tag as its version and names the images of that tag. It
// returns the path of the file.
func Package(directory, registry, tag, output string) (string, error) {
	loaded, err := Load(directory)
	if err != nil {
		return "", err
	}
	version := strings.TrimPrefix(tag, "v")
	loaded.Metadata.Version, loaded.Metadata.AppVersion = version, tag
	// Artifact Hub is told which images the chart installs, and whether its version is a final one.
	loaded.Metadata.Annotations["artifacthub.io/images"] = fmt.Sprintf(imagesOf, registry+"/"+install.PluginImage, tag)
	loaded.Metadata.Annotations["artifacthub.io/prerelease"] = strconv.FormatBool(strings.Contains(tag, "-"))
	at := slices.IndexFunc(loaded.Raw, func(f *common.File) bool { return f.Name == valuesFile })
	if at < 0 || !bytes.Contains(loaded.Raw[at].Data, []byte(noRegistry)) {
		return "", fmt.Errorf("%s of %s has no %s to fill in", valuesFile, directory, noRegistry)
	}
	loaded.Raw[at].Data = bytes.Replace(loaded.Raw[at].Data, []byte(noRegistry), fmt.Appendf(nil, "registry: %q", registry), 1)
	if err := loaded.Validate(); err != nil {
		return "", fmt.Errorf("the chart of version %q: %w", version, err)
	}
	file, err := chartutil.Save(loaded, output)
	if err != nil {
		return "", fmt.Errorf("package the chart: %w", err)
	}
	return file, nil
}
