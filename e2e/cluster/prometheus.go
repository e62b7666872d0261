package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// monitoringSuite is the Debian suite whose packages have Prometheus and Alertmanager; they run with the C library of that suite
// and of newer ones.
const monitoringSuite = "bookworm"

// Prometheus gets, unless the cache has them, Prometheus and promtool, which tests rules, and returns the directory that they
// are in.
func (l Layout) Prometheus(ctx context.Context, progress *Progress) (string, error) {
	return l.programs(ctx, progress, "prometheus", "prometheus", "promtool")
}

// Alertmanager gets, unless the cache has it, Alertmanager, and returns the path of a script that runs it.
func (l Layout) Alertmanager(ctx context.Context, progress *Progress) (string, error) {
	const name = "prometheus-alertmanager" // of the package and the program
	directory, err := l.programs(ctx, progress, name, name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(directory, "alertmanager")
	return path, os.WriteFile(path, []byte(runAlertmanager), 0o755)
}

// runAlertmanager gives Debian's Alertmanager the templates that it opens at its start, and that no notification of ours uses, in a
// mount namespace of its own.
const runAlertmanager = `#!/bin/sh
set -e
exec unshare --mount sh -ec '
	mount -t tmpfs tmpfs /usr/share
	mkdir -p /usr/share/prometheus/alertmanager
	: >/usr/share/prometheus/alertmanager/default.tmpl
	: >/usr/share/prometheus/alertmanager/email.tmpl
	exec "$@"
' sh "$(dirname "$0")/prometheus-alertmanager" "$@"
`

// programs takes programs out of a package, unless the cache has them, and returns the directory that they are in.
func (l Layout) programs(ctx context.Context, progress *Progress, of string, programs ...string) (string, error) {
	directory, err := l.keyed(of, nil, append([]string{monitoringSuite}, programs...)...)
	if err != nil {
		return "", err
	}
	return directory, l.fill(progress, directory, of+" from Debian "+monitoringSuite, func(work, part string) error {
		archives, err := download(ctx, work, monitoringSuite, "download", of)
		if err != nil {
			return err
		}
		if err := os.Mkdir(part, 0o755); err != nil {
			return fmt.Errorf("make a directory: %w", err)
		}
		const script = `dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" --no-same-owner --strip-components=3 "${@:3}"`
		for _, archive := range archives {
			arguments := []string{"-o", "pipefail", "-c", script, "unpack", archive, part}
			for _, program := range programs {
				arguments = append(arguments, "./usr/bin/"+program)
			}
			if _, err := do(ctx, "bash", arguments...); err != nil {
				return err
			}
		}
		return nil
	})
}
