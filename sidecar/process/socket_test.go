package process

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// listen opens a socket until the test ends.
func listen(t *testing.T, path string) {
	t.Helper()
	listener, err := ListenPrivate(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
}

func TestListenPrivate_isForItsOwnUser(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "private.sock")
	listen(t, path)
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Type() != fs.ModeSocket || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
}

func TestListenPrivate_replacesWhatAnEarlierProcessLeft(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "private.sock")
	for _, left := range []string{path, path + ".new"} {
		if err := os.WriteFile(left, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	listen(t, path)
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

func TestListenPrivate_namesWhatFailed(t *testing.T) {
	t.Parallel()
	if _, err := ListenPrivate(filepath.Join(t.TempDir(), "absent", "private.sock")); err == nil {
		t.Error("a socket in a directory that is not there was made")
	}
	occupied := filepath.Join(t.TempDir(), "private.sock")
	if err := os.Mkdir(occupied, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenPrivate(occupied); err == nil {
		t.Error("a directory was replaced")
	}
}
