// Package install renders the project's manifests with the names of built images.
package install

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// overlay puts the names of built images into the manifests: the transformer of images reaches containers, the patch the
// environment variable that names the sidecar's.
const overlay = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%[1]q]
images:
  - {name: cnpg-i-scale-to-zero, newName: %[2]q, newTag: %[3]q}
patches:
  - patch: |
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: scale-to-zero, namespace: cnpg-system}
      spec:
        template:
          spec:
            containers:
              - name: cnpg-i-scale-to-zero
                env: [{name: SIDECAR_IMAGE, value: "%[2]s-sidecar:%[3]s"}]
`

// rendering is held while kustomize works: it keeps what it knows of types in variables of the whole process.
var rendering sync.Mutex

// Render builds the kustomization of a directory with the images of the registry and tag.
func Render(directory, registry, tag string) ([]byte, error) {
	temporary, err := os.MkdirTemp("", "overlay-")
	if err != nil {
		return nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	absolute, err := filepath.Abs(directory)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", directory, err)
	}
	// kustomize resolves symbolic links in one of the two paths only.
	if temporary, err = filepath.EvalSymlinks(temporary); err != nil {
		return nil, fmt.Errorf("find the temporary directory: %w", err)
	}
	relative, err := filepath.Rel(temporary, absolute)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", directory, err)
	}
	body := fmt.Sprintf(overlay, relative, registry+"/cnpg-i-scale-to-zero", tag)
	if err := os.WriteFile(filepath.Join(temporary, "kustomization.yaml"), []byte(body), 0o600); err != nil {
		return nil, fmt.Errorf("write the overlay: %w", err)
	}
	rendering.Lock()
	defer rendering.Unlock()
	options := krusty.MakeDefaultOptions()
	options.LoadRestrictions = types.LoadRestrictionsNone
	resources, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), temporary)
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", directory, err)
	}
	rendered, err := resources.AsYaml()
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", directory, err)
	}
	return rendered, nil
}
