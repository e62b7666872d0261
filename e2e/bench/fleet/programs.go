package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cnpg-i/scale-to-zero/e2e/cluster"
)

// programs are what is run, and the folder of the CRDs.
type programs struct{ kubernetes, plugin, definitions string }

// prepare makes what is not given; the plugin is written to the folder.
func (p *programs) prepare(ctx context.Context, progress *cluster.Progress, folder string) error {
	if p.kubernetes == "" {
		layout, err := cluster.DefaultLayout(".")
		if err != nil {
			return err
		}
		if p.kubernetes, err = layout.Kubernetes(ctx, progress); err != nil {
			return err
		}
	}
	if p.plugin == "" {
		p.plugin = filepath.Join(folder, "plugin")
		if _, err := goTool(ctx, "..", "build", "-trimpath", "-ldflags", "-s -w -X main.version=fleet", "-o", p.plugin, "./plugin"); err != nil {
			return err
		}
	}
	if p.definitions == "" {
		module, err := goTool(ctx, ".", "list", "-m", "-f", "{{.Dir}}", "github.com/cloudnative-pg/cloudnative-pg")
		if err != nil {
			return err
		}
		p.definitions = filepath.Join(strings.TrimSpace(module), "config", "crd", "bases")
	}
	return nil
}

// goTool runs the go command in a folder and returns what it prints.
func goTool(ctx context.Context, folder string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, "go", arguments...)
	command.Dir, command.Env = folder, append(os.Environ(), "CGO_ENABLED=0")
	out, err := command.Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			err = fmt.Errorf("%w: %s", err, failed.Stderr)
		}
		return "", fmt.Errorf("run go %s: %w", strings.Join(arguments, " "), err)
	}
	return string(out), nil
}
