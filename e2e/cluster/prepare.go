package cluster

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/cnpg-i/scale-to-zero/e2e/images"
)

// artefacts are the files that a cluster is made of.
type artefacts struct {
	kubernetes, node, manifest string
	// archives are the images to import.
	archives []string
	// postgresImage is the name of the operand's image.
	postgresImage string
}

// Prepare builds what a cluster of the versions is made of and the cache does not have, and makes none.
func (l Layout) Prepare(ctx context.Context, progress *Progress, versions Versions) error {
	if err := versions.Check(); err != nil {
		return err
	}
	_, err := l.prepare(ctx, progress, versions)
	return err
}

// prepare builds what the cache does not have.
func (l Layout) prepare(ctx context.Context, progress *Progress, versions Versions) (artefacts, error) {
	if err := installPackages(ctx, progress, packages); err != nil {
		return artefacts{}, fmt.Errorf("install Debian packages: %w", err)
	}
	var a artefacts
	var err error
	if a.kubernetes, err = l.kubernetesRelease(ctx, progress, versions.Kubernetes); err != nil {
		return a, err
	}
	if a.node, err = l.build(ctx, progress, "node-services", l.module("node"), ".", "-s -w"); err != nil {
		return a, err
	}
	operatorModule := l.moduleOf("operator", versions.Operator, operatorVersions)
	operator, err := l.build(ctx, progress, "operator-"+versions.Operator, operatorModule,
		operatorPath+"/cmd/manager",
		"-s -w -X "+operatorPath+"/pkg/versions.buildVersion="+versions.Operator)
	if err != nil {
		return a, err
	}
	operatorArchive, err := operatorImage(progress, operator, versions.Operator)
	if err != nil {
		return a, err
	}
	pauseArchive, err := l.pauseImage(ctx)
	if err != nil {
		return a, err
	}
	postgresArchive, postgresImage, err := l.PostgresImage(ctx, progress, versions.Postgres)
	if err != nil {
		return a, err
	}
	a.postgresImage, a.archives = postgresImage, []string{pauseArchive, operatorArchive, postgresArchive}
	a.manifest, err = operatorManifest(ctx, operatorModule, versions.Operator)
	return a, err
}

// Kubernetes is the program that is every component of the usual release of Kubernetes, and etcd; it is made if the cache does
// not have it.
func (l Layout) Kubernetes(ctx context.Context, progress *Progress) (string, error) {
	return l.kubernetesRelease(ctx, progress, Usual().Kubernetes)
}

func (l Layout) kubernetesRelease(ctx context.Context, progress *Progress, version string) (string, error) {
	const stamp = "k8s.io/component-base/version"
	flags := fmt.Sprintf("-s -w -X %[1]s.gitVersion=v%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=%[3]s -X %[1]s.gitTreeState=clean -X %[1]s.buildDate=2026-01-01T00:00:00Z",
		stamp, version, strings.Split(version, ".")[1])
	return l.build(ctx, progress, "kubernetes-"+version, l.moduleOf("kubernetes", version, kubernetesVersions), ".", flags)
}

// build compiles a program of one of the modules under build/, unless the cache has it.
func (l Layout) build(ctx context.Context, progress *Progress, name string, module module, program, flags string) (string, error) {
	sources, err := module.sources()
	if err != nil {
		return "", err
	}
	settings := []string{flags}
	for _, e := range module.edits {
		settings = append(settings, e.file, e.old, e.new)
	}
	binary, err := l.keyed(name, sources, settings...)
	if err != nil {
		return "", err
	}
	if cached(binary) {
		return binary, nil
	}
	if err := os.MkdirAll(l.Cache, 0o755); err != nil {
		return "", fmt.Errorf("make the cache: %w", err)
	}
	progress.Say("compile %s (minutes when nothing is cached)", name)
	file := module.file
	if len(module.edits) != 0 {
		folder := binary + ".edited"
		defer func() { _ = os.RemoveAll(folder) }()
		if file, err = module.edited(ctx, folder); err != nil {
			return "", err
		}
	}
	// The cache serves every commit, so that none is stamped into the program, and git need not trust the checkout.
	command := exec.CommandContext(ctx, "go", "build", "-modfile="+file, "-buildvcs=false", "-trimpath", "-ldflags", flags, "-o", binary+".part", program)
	command.Dir, command.Env = module.directory, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile %s: %w: %s", name, err, out)
	}
	return binary, os.Rename(binary+".part", binary)
}

// programImage makes, unless the cache has it, an image of one program of the module of the name, and of further files.
func (l Layout) programImage(ctx context.Context, progress *Progress, name, program string, files ...images.File) (archive, image string, err error) {
	binary, err := l.build(ctx, progress, name, l.module(name), program, "-s -w")
	if err != nil {
		return "", "", err
	}
	archive, image = binary+".tar", "localhost/"+name+":1"
	config := images.Config{Entrypoint: []string{"/" + name}, User: "65532:65532", WorkingDir: "/"}
	layer := images.Files(append(files, images.File{Name: name, Mode: 0o755, From: binary})...)
	return archive, image, writeImage(progress, archive, image, config, layer)
}

// cached reports whether the cache has a file or a directory.
func cached(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// writeImage writes an image, unless the cache has it.
func writeImage(progress *Progress, archive, name string, config images.Config, layers ...images.Layer) error {
	if cached(archive) {
		return nil
	}
	progress.Say("write the image %s", name)
	return images.Write(archive, name, config, layers...)
}

// operatorImage makes the operator's image: it looks for its own programs, of which a name ends with the architecture, under
// /operator, and the instances run /manager.
func operatorImage(progress *Progress, binary, version string) (string, error) {
	archive := binary + ".tar"
	program := "operator/manager_" + runtime.GOARCH
	config := images.Config{Entrypoint: []string{"/manager"}, User: "65532:65532", WorkingDir: "/"}
	return archive, writeImage(progress, archive, "localhost/cloudnative-pg:"+version, config, images.Files(
		images.File{Name: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		images.File{Name: "operator", Mode: fs.ModeDir | 0o755},
		images.File{Name: program, Mode: 0o755, From: binary},
		images.File{Name: "manager", Link: program},
	))
}

// pauseImage makes the image that holds a pod's namespaces.
func (l Layout) pauseImage(ctx context.Context) (string, error) {
	sources, err := filepath.Glob(filepath.Join(l.Source, "cmd", "pause", "*.go"))
	if err != nil {
		return "", fmt.Errorf("list the program of pause: %w", err)
	}
	archive, err := l.keyed("pause", sources)
	if err != nil {
		return "", err
	}
	if archive += ".tar"; cached(archive) {
		return archive, nil
	}
	pause := images.Program{Module: l.Source, Package: "./cmd/pause", Version: "1", Name: "localhost/pause:1"}
	return archive, pause.Build(ctx, archive)
}

// releaseImage is the operator's image in its own manifest.
var releaseImage = regexp.MustCompile(`[a-z.]+/cloudnative-pg/cloudnative-pg:[0-9.]+`)

// operatorManifest is the manifest that the operator's own release carries, with the names of our images.
func operatorManifest(ctx context.Context, pinned module, version string) (string, error) {
	directory, err := pinned.directoryOf(ctx, operatorPath)
	if err != nil {
		return "", err
	}
	content, err := os.ReadFile(filepath.Join(directory, "releases", "cnpg-"+version+".yaml"))
	if err != nil {
		return "", fmt.Errorf("read the operator's manifest: %w", err)
	}
	return withOurImage(string(content), version), nil
}

// withOurImage lets a manifest use the operator's image that containerd was given.
func withOurImage(manifest, version string) string {
	manifest = releaseImage.ReplaceAllString(manifest, "localhost/cloudnative-pg:"+version)
	return strings.ReplaceAll(manifest, "imagePullPolicy: Always", "imagePullPolicy: IfNotPresent")
}
