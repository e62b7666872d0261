package cluster

import (
	"context"
	"io/fs"
	"path/filepath"

	"github.com/cnpg-i/scale-to-zero/e2e/images"
)

// kustomizeController is the module of Flux's controller, and its program.
const kustomizeController = "github.com/fluxcd/kustomize-controller"

// KustomizeControllerImage makes, unless the cache has it, the image of Flux's kustomize-controller. It returns its archive and its name.
func (l Layout) KustomizeControllerImage(ctx context.Context, progress *Progress) (archive, name string, err error) {
	return l.programImage(ctx, progress, "kustomize-controller", kustomizeController, images.File{Name: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777})
}

// KustomizeControllerCRD is the file of the definition of Kustomization in the controller's own module.
func (l Layout) KustomizeControllerCRD(ctx context.Context) (string, error) {
	directory, err := l.module("kustomize-controller").directoryOf(ctx, kustomizeController)
	if err != nil {
		return "", err
	}
	return filepath.Join(directory, "config", "crd", "bases", "kustomize.toolkit.fluxcd.io_kustomizations.yaml"), nil
}
