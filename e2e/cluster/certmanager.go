package cluster

import (
	"context"
	"path/filepath"
)

// CertManagerImage makes, unless the cache has it, the image of all programs of cert-manager that the tests run, of which COMPONENT
// chooses one. It returns its archive and its name.
func (l Layout) CertManagerImage(ctx context.Context, progress *Progress) (archive, name string, err error) {
	return l.programImage(ctx, progress, "cert-manager", ".")
}

// CertManagerChart is the directory of the Helm chart in cert-manager's own module.
func (l Layout) CertManagerChart(ctx context.Context) (string, error) {
	directory, err := l.module("cert-manager").directoryOf(ctx, "github.com/cert-manager/cert-manager")
	if err != nil {
		return "", err
	}
	return filepath.Join(directory, "deploy", "charts", "cert-manager"), nil
}
