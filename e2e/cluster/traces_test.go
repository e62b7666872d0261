package cluster

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMountsBelow(t *testing.T) {
	t.Parallel()
	const mounts = "overlay /srv/run/containerd/rootfs overlay rw 0 0\n" +
		"tmpfs /srv/run/kubelet/pods/a/volumes tmpfs rw 0 0\n" +
		"ext4 /srv/run/kubelet/pods/a/volumes/deep ext4 rw 0 0\n" +
		"tmpfs /srv/run ext4 rw 0 0\n" +
		"tmpfs /srv/runner/x tmpfs rw 0 0\n" +
		`tmpfs /srv/run/with\040space tmpfs rw 0 0` + "\n" +
		"incomplete\n"
	want := []string{
		"/srv/run/with space", "/srv/run/kubelet/pods/a/volumes/deep", "/srv/run/kubelet/pods/a/volumes", "/srv/run/containerd/rootfs",
	}
	if diff := cmp.Diff(want, mountsBelow(mounts, "/srv/run")); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

func FuzzMountsBelow(f *testing.F) {
	f.Add("a /srv/run/b c\n")
	f.Add(`a /srv/run/\134040 c`)
	f.Fuzz(func(t *testing.T, mounts string) {
		for _, point := range mountsBelow(mounts, "/srv/run") {
			if !strings.HasPrefix(point, "/srv/run/") {
				t.Errorf("%q is not below the folder", point)
			}
		}
	})
}

func TestSocketsOfShims(t *testing.T) {
	t.Parallel()
	run := t.TempDir()
	// The path of a socket is short, and that of a test's directory is not.
	sockets, err := os.MkdirTemp("", "shim")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	ours, others := filepath.Join(sockets, "ours"), filepath.Join(sockets, "others")
	for _, path := range []string{ours, others} {
		listener := must(net.ListenUnix("unix", &net.UnixAddr{Name: path}))(t)
		listener.SetUnlinkOnClose(false)
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
	}
	shims := filepath.Join(run, "containerd-state/io.containerd.runtime.v2.task/k8s.io")
	for id, address := range map[string]string{"one": "unix://" + ours, "two": "unix://" + filepath.Join(sockets, "gone"), "three": ""} {
		if err := writeFile(filepath.Join(shims, id, "address"), address); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeSockets(run); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(ours); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of a shim is still there: %v", err)
	}
	if _, err := os.Stat(others); err != nil {
		t.Errorf("another's socket was removed: %v", err)
	}
}

func TestARecordedProcessIsOneOfTheClusterOnly(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	l := Layout{Run: filepath.Join(folder, "run")}
	if err := writeFile(l.run("pids", "etcd"), strconv.Itoa(os.Getpid())); err != nil { // this test is no etcd
		t.Fatal(err)
	}
	if err := writeFile(l.run("pids", "kubelet"), "half a number"); err != nil {
		t.Fatal(err)
	}
	if err := writeFile(filepath.Join(l.Logs(), "etcd.log"), strings.Repeat("old line\n", 1000)+"the reason\n"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"etcd": 0, "kubelet": 0}, l.components()); diff != "" {
		t.Errorf("components (-want +got):\n%s", diff)
	}
	if err := os.Remove(l.run("pids", "kubelet")); err != nil {
		t.Fatal(err)
	}
	err := l.ended()
	if !errors.Is(err, errEnded) || !strings.HasSuffix(err.Error(), "the reason\n") || len(err.Error()) > 3000 {
		t.Errorf("the error does not show the end of the log: %v", err)
	}
	if _, err := l.Status(); !errors.Is(err, ErrDown) {
		t.Errorf("the status is %v, want ErrDown", err)
	}
}
