package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// promtoolSuite is the Debian suite whose package has promtool; it runs with the C library of that suite and of newer ones.
const promtoolSuite = "bookworm"

// Promtool gets, unless the cache has it, Prometheus' tool that tests rules, and returns its path.
func (l Layout) Promtool(ctx context.Context, progress *Progress) (string, error) {
	path, err := l.keyed("promtool", nil, promtoolSuite)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(l.Cache, 0o755); err != nil {
		return "", fmt.Errorf("make the cache: %w", err)
	}
	progress.Say("unpack promtool from Debian %s", promtoolSuite)
	work, err := os.MkdirTemp(l.Cache, "packages-")
	if err != nil {
		return "", fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	archives, err := downloadAlone(ctx, work, promtoolSuite, "prometheus")
	if err != nil {
		return "", err
	}
	const member = "./usr/bin/promtool"
	for _, archive := range archives {
		script := `dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" --no-same-owner ` + member
		if _, err := do(ctx, "bash", "-o", "pipefail", "-c", script, "unpack", archive, work); err != nil {
			return "", err
		}
	}
	if err := os.Rename(filepath.Join(work, member), path); err != nil {
		return "", fmt.Errorf("keep promtool: %w", err)
	}
	return path, nil
}
