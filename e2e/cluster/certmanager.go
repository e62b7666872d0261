package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cnpg-i/scale-to-zero/e2e/images"
)

// certManagerImage is the image of all programs of cert-manager that the tests run; the first argument chooses one.
const certManagerImage = "localhost/cert-manager:1"

// CertManagerImage makes, unless the cache has it, the image of cert-manager's programs. It returns its archive and its name.
func (l Layout) CertManagerImage(ctx context.Context, progress *Progress) (archive, name string, err error) {
	if err := os.MkdirAll(l.Cache, 0o755); err != nil {
		return "", "", fmt.Errorf("make the cache: %w", err)
	}
	binary, err := l.build(ctx, progress, "cert-manager", l.module("cert-manager"), ".", "-s -w")
	if err != nil {
		return "", "", err
	}
	archive = binary + ".tar"
	if _, err := os.Stat(archive); err == nil {
		return archive, certManagerImage, nil
	}
	config := images.Config{Entrypoint: []string{"/cert-manager"}, User: "65532:65532", WorkingDir: "/"}
	return archive, certManagerImage, images.Write(archive, certManagerImage, config, images.Files(images.File{Name: "cert-manager", Mode: 0o755, From: binary}))
}

// CertManagerChart is the directory of the Helm chart in cert-manager's own module.
func (l Layout) CertManagerChart(ctx context.Context) (string, error) {
	pinned := l.module("cert-manager")
	command := exec.CommandContext(ctx, "go", "list", "-modfile="+pinned.file, "-m", "-f", "{{.Dir}}", "github.com/cert-manager/cert-manager")
	command.Dir, command.Env = pinned.directory, append(os.Environ(), "GOFLAGS=")
	directory, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("find the module of cert-manager: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(directory)), "deploy", "charts", "cert-manager"), nil
}
