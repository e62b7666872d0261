package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// finish does what the packages' scripts would have done for a server.
func finish(ctx context.Context, root, major string) error {
	if err := furnish(root); err != nil {
		return err
	}
	if err := linkPrograms(root, major); err != nil {
		return err
	}
	for _, directory := range []string{"var/lib/postgresql", "run/postgresql"} {
		err := filepath.WalkDir(filepath.Join(root, directory), func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, postgresUser, postgresUser)
		})
		if err != nil {
			return fmt.Errorf("give /%s to PostgreSQL: %w", directory, err)
		}
	}
	_, err := do(ctx, "ldconfig", "-r", root)
	return err
}

// furnish adds what a root filesystem has and no package brings.
func furnish(root string) error {
	for _, directory := range rootDirectories {
		if err := os.MkdirAll(filepath.Join(root, directory), 0o755); err != nil {
			return fmt.Errorf("make /%s: %w", directory, err)
		}
	}
	run := filepath.Join(root, "var/run")
	if err := errors.Join(os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky), os.RemoveAll(run), os.Symlink("/run", run)); err != nil {
		return fmt.Errorf("open /tmp and link /var/run: %w", err)
	}
	for name, content := range rootFiles {
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o644); err != nil {
			return fmt.Errorf("write /%s: %w", name, err)
		}
	}
	return makeDevices(root)
}

func makeDevices(root string) error {
	for name, number := range devices {
		path := filepath.Join(root, "dev", name)
		if err := syscall.Mknod(path, syscall.S_IFCHR|0o666, number); err != nil {
			return fmt.Errorf("make /dev/%s: %w", name, err)
		}
		if err := os.Chmod(path, 0o666); err != nil { // without the mask of this process
			return fmt.Errorf("open /dev/%s: %w", name, err)
		}
	}
	return nil
}

// linkPrograms puts PostgreSQL's programs on the PATH, because Debian has them in a directory of the major version, and PgBouncer where
// CloudNativePG runs it.
func linkPrograms(root, major string) error {
	directory := filepath.Join("usr/lib/postgresql", major, "bin")
	programs, err := os.ReadDir(filepath.Join(root, directory))
	if err != nil {
		return fmt.Errorf("list PostgreSQL's programs: %w", err)
	}
	for _, program := range programs {
		link := filepath.Join(root, "usr/bin", program.Name())
		target := filepath.Join("..", "..", directory, program.Name())
		if err := errors.Join(os.RemoveAll(link), os.Symlink(target, link)); err != nil {
			return fmt.Errorf("link %s: %w", program.Name(), err)
		}
	}
	return os.Symlink("../sbin/pgbouncer", filepath.Join(root, "usr/bin/pgbouncer"))
}
