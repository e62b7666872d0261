// Command archives writes the archives of kubectl scale_to_zero for every platform, their SBOMs and checksums, and the manifest for
// krew.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/cnpg-i/scale-to-zero/e2e/archives"
)

func main() {
	version := flag.String("version", "", "version, such as v1.2.3")
	repository := flag.String("repository", "", "whose releases have the archives, as an address")
	module := flag.String("module", "..", "directory of the module")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	release := archives.Release{Module: *module, Version: *version, Repository: *repository, Output: filepath.Join(*module, "build", "archives")}
	if err := write(ctx, release); err != nil {
		fmt.Fprintln(os.Stderr, "archives:", err)
		os.Exit(1)
	}
}

func write(ctx context.Context, release archives.Release) error {
	made, err := release.Build(ctx, archives.Platforms()...)
	if err != nil {
		return err
	}
	manifest, err := release.Manifest(made)
	if err != nil {
		return err
	}
	for name, body := range map[string][]byte{"checksums.txt": archives.Checksums(made), archives.Krew + ".yaml": manifest} {
		if err := os.WriteFile(filepath.Join(release.Output, name), body, 0o644); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	for _, archive := range made {
		fmt.Println(filepath.Join(release.Output, archive.Name))
	}
	return nil
}
