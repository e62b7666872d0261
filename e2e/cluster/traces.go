package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// mountsBelow finds in the text of /proc/self/mounts what is mounted below a folder, the deepest and newest first.
func mountsBelow(mounts, folder string) []string {
	var points []string
	for line := range strings.Lines(mounts) {
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], folder+"/") {
			points = append(points, strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace(fields[1]))
		}
	}
	slices.Sort(points)
	slices.Reverse(points)
	return points
}

// unmount removes what is mounted below the run folder: of containerd, of the kubelet, and the pods' network namespaces.
func (l Layout) unmount() error {
	var failures []error
	for range 3 { // to unmount one may bring up or take away another
		mounts, err := os.ReadFile("/proc/self/mounts")
		if err != nil {
			return fmt.Errorf("read the mounts: %w", err)
		}
		failures = nil
		for _, point := range mountsBelow(string(mounts), l.Run) {
			if err := syscall.Unmount(point, syscall.MNT_DETACH); err != nil {
				failures = append(failures, fmt.Errorf("unmount %s: %w", point, err))
			}
		}
		if failures == nil {
			break
		}
	}
	return errors.Join(failures...)
}

// removeSockets removes the sockets of containerd's shims, which have a place of their own; the shims' folders name them.
func removeSockets(run string) error {
	files, _ := filepath.Glob(filepath.Join(run, "containerd-state/io.containerd.runtime.v2.task/*/*/address"))
	for _, file := range files {
		address, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read the address of a shim: %w", err)
		}
		if path, is := strings.CutPrefix(string(address), "unix://"); is {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove the socket of a shim: %w", err)
			}
		}
	}
	return nil
}

// removeCgroups removes our control groups in every hierarchy, once what was in them is collected.
func (l Layout) removeCgroups(ctx context.Context) error {
	return until(ctx, "the control groups to be empty", 3*time.Second, func(context.Context) error {
		var failures []error
		for _, root := range l.cgroupRoots() {
			var directories []string
			_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
				if err == nil && entry.IsDir() {
					directories = append(directories, path)
				}
				return nil
			})
			slices.Reverse(directories)
			for _, directory := range directories {
				if err := syscall.Rmdir(directory); err != nil && !errors.Is(err, syscall.ENOENT) {
					failures = append(failures, fmt.Errorf("remove the control group %s: %w", directory, err))
				}
			}
		}
		return errors.Join(failures...)
	})
}

// removeRecords removes what CNI wrote down of our pods: it keeps that in one place for all networks of the machine.
func (l Layout) removeRecords() error {
	const results = "/var/lib/cni/results"
	own, _ := filepath.Glob(filepath.Join(results, l.own()+"-*"))
	var failed error
	for _, record := range own {
		sandbox := strings.TrimPrefix(filepath.Base(record), l.own()+"-")
		sandbox = sandbox[:max(0, strings.LastIndex(sandbox, "-"))]
		failed = errors.Join(failed, os.RemoveAll(record), os.RemoveAll(filepath.Join(results, "cni-loopback-"+sandbox+"-lo")))
	}
	return failed
}

// removeLogLinks removes the links that the kubelet makes, in one place for the machine, to the logs of containers.
func (l Layout) removeLogLinks() error {
	links, _ := filepath.Glob("/var/log/containers/*.log")
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, l.Logs()+"/") {
			if err := os.RemoveAll(link); err != nil {
				return fmt.Errorf("remove the link to a log: %w", err)
			}
		}
	}
	return nil
}
