package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// prometheusSuite is the Debian suite whose package has Prometheus; it runs with the C library of that suite and of newer ones.
const prometheusSuite = "bookworm"

// prometheusPrograms are what is taken out of the package: the server, and the tool that tests rules.
var prometheusPrograms = []string{"prometheus", "promtool"}

// Prometheus gets, unless the cache has them, Prometheus and promtool, and returns the directory that they are in.
func (l Layout) Prometheus(ctx context.Context, progress *Progress) (string, error) {
	directory, err := l.keyed("prometheus", nil, append([]string{prometheusSuite}, prometheusPrograms...)...)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(directory); err == nil {
		return directory, nil
	}
	if err := os.MkdirAll(l.Cache, 0o755); err != nil {
		return "", fmt.Errorf("make the cache: %w", err)
	}
	progress.Say("unpack Prometheus from Debian %s", prometheusSuite)
	work, err := os.MkdirTemp(l.Cache, "packages-")
	if err != nil {
		return "", fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	archives, err := downloadAlone(ctx, work, prometheusSuite, "prometheus")
	if err != nil {
		return "", err
	}
	const members = "./usr/bin"
	for _, archive := range archives {
		script := `dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" --no-same-owner "${@:3}"`
		arguments := []string{"-o", "pipefail", "-c", script, "unpack", archive, work}
		for _, program := range prometheusPrograms {
			arguments = append(arguments, members+"/"+program)
		}
		if _, err := do(ctx, "bash", arguments...); err != nil {
			return "", err
		}
	}
	if err := os.Rename(filepath.Join(work, members), directory); err != nil {
		return "", fmt.Errorf("keep Prometheus: %w", err)
	}
	return directory, nil
}
