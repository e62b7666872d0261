// Package install renders the project's manifests with the names of built images.
package install

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// PluginImage is the name of the plugin's image; the sidecar's has "-sidecar" behind it.
const PluginImage = "cnpg-i-scale-to-zero"

// overlay puts the names of built images into the manifests: the transformer of images reaches containers, a patch the
// environment variable that names the sidecar's, in a pod of the plugin's own or in the operator's.
const overlay = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%[1]s]
components: [%[4]s]
images:
  - {name: cnpg-i-scale-to-zero, newName: %[2]q, newTag: %[3]q}
patches:
  - target: {kind: Deployment, name: ^scale-to-zero$}
    patch: |
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: scale-to-zero}
      spec:
        template:
          spec:
            containers:
              - name: cnpg-i-scale-to-zero
                env: [{name: SIDECAR_IMAGE, value: "%[2]s-sidecar:%[3]s"}]
  - target: {kind: Deployment, name: ^cnpg-controller-manager$}
    patch: |
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: cnpg-controller-manager}
      spec:
        template:
          spec:
            initContainers:
              - name: cnpg-i-scale-to-zero
                env: [{name: SIDECAR_IMAGE, value: "%[2]s-sidecar:%[3]s"}]
`

// rendering is held while kustomize works: it keeps what it knows of types in variables of the whole process.
var rendering sync.Mutex

// Render builds the kustomization of a directory with the images of the registry and tag.
func Render(directory, registry, tag string) ([]byte, error) {
	return overlaid(directory, nil, nil, registry, tag)
}

// With is the base of a directory of manifests with some of its components, with the images of the registry and tag.
func With(manifests, registry, tag string, components ...string) ([]byte, error) {
	for i, component := range components {
		components[i] = filepath.Join(manifests, "components", component)
	}
	return overlaid(filepath.Join(manifests, "base"), components, nil, registry, tag)
}

// RenderInOperator adds the component of the plugin in the operator's pod to the operator's manifest.
func RenderInOperator(component string, operator []byte, registry, tag string) ([]byte, error) {
	return overlaid("", []string{component}, operator, registry, tag)
}

// Build is a directory's kustomization as it is.
func Build(directory string) ([]byte, error) {
	rendering.Lock()
	defer rendering.Unlock()
	options := krusty.MakeDefaultOptions()
	options.LoadRestrictions = types.LoadRestrictionsNone
	resources, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), directory)
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", directory, err)
	}
	rendered, err := resources.AsYaml()
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", directory, err)
	}
	return rendered, nil
}

// ReleasedOperator is the operator's Deployment in the manifest of the release that this module is built with.
func ReleasedOperator(ctx context.Context) ([]byte, error) {
	const module = "github.com/cloudnative-pg/cloudnative-pg"
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}} {{.Version}}", module).Output()
	if err != nil {
		return nil, fmt.Errorf("find the operator's module: %w", err)
	}
	directory, version, _ := strings.Cut(strings.TrimSpace(string(out)), " v")
	manifest, err := os.ReadFile(filepath.Join(directory, "releases", "cnpg-"+version+".yaml"))
	if err != nil {
		return nil, fmt.Errorf("read the operator's manifest: %w", err)
	}
	for _, document := range bytes.Split(manifest, []byte("\n---\n")) {
		if bytes.Contains(document, []byte("\nkind: Deployment\n")) {
			return document, nil
		}
	}
	return nil, fmt.Errorf("the operator's manifest of %s has no Deployment", version)
}

// overlaid builds an overlay over a directory, or over a manifest if there is one, with components.
func overlaid(directory string, components []string, manifest []byte, registry, tag string) ([]byte, error) {
	made, err := os.MkdirTemp("", "overlay-")
	if err != nil {
		return nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(made) }()
	temporary, err := filepath.EvalSymlinks(made) // kustomize resolves symbolic links in one of the two paths only
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", made, err)
	}
	var paths []string
	for _, path := range append([]string{directory}, components...) {
		relative, err := relativeTo(temporary, path)
		if err != nil {
			return nil, err
		}
		paths = append(paths, strconv.Quote(relative))
	}
	if manifest != nil {
		paths[0] = "manifest.yaml"
	}
	overlay := fmt.Sprintf(overlay, paths[0], registry+"/"+PluginImage, tag, strings.Join(paths[1:], ", "))
	for name, body := range map[string][]byte{"kustomization.yaml": []byte(overlay), "manifest.yaml": manifest} {
		if err := os.WriteFile(filepath.Join(temporary, name), body, 0o600); err != nil {
			return nil, fmt.Errorf("write the overlay: %w", err)
		}
	}
	return Build(temporary)
}

// relativeTo is the path from a directory to another one: kustomize takes no absolute path of a directory.
func relativeTo(directory, path string) (string, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", path, err)
	}
	return filepath.Rel(directory, absolute)
}
