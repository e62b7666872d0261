package process

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
)

// ListenPrivate opens a Unix socket that only our own user may connect to, replacing that of an earlier process. The
// socket gets its mode before its final name, so that it is never open to others. Its directory must be private to the
// container.
func ListenPrivate(path string) (*net.UnixListener, error) {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier process: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", fresh, err)
	}
	listener.SetUnlinkOnClose(false) // it would remove the old name
	if err := os.Chmod(fresh, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict %s: %w", fresh, err), listener.Close())
	}
	if err := os.Rename(fresh, path); err != nil {
		return nil, errors.Join(fmt.Errorf("name the socket %s: %w", path, err), listener.Close())
	}
	return listener, nil
}
