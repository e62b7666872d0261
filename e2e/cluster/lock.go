package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lockFile is one file for each network, because a cluster's addresses and links belong to its network. `up` and `down` lock it while
// they work, and keep the run folder of the running cluster in it. A restart of the machine removes it.
func (l Layout) lockFile() string { return "/run/cnpg-i-scale-to-zero" + l.Network }

// ErrBusy says that another `up` or `down` is at work.
var ErrBusy = errors.New("another `up` or `down` is at work on this machine")

// claim is a held lock.
type claim struct{ file *os.File }

// claimed is what the file says.
type claimed struct {
	// Process is the last that held the lock, Run the run folder of the cluster that is up.
	Process int    `json:"process"`
	Run     string `json:"run"`
}

// take takes the lock, or returns ErrBusy at once. The file is closed on exec: no component of the cluster inherits the lock,
// and when this process dies, however it does, the lock is free.
func take(path string) (claim, error) {
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return claim{}, fmt.Errorf("open the lock: %w", err)
		}
		c := claim{file}
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			said, _ := c.read()
			_ = file.Close()
			if errors.Is(err, syscall.EWOULDBLOCK) {
				return claim{}, fmt.Errorf("%w: process %d", ErrBusy, said.Process)
			}
			return claim{}, fmt.Errorf("lock %s: %w", path, err)
		}
		// Between opening and locking, the holder may have removed the file: then this is a lock on nothing.
		held, err := file.Stat()
		if err != nil {
			_ = file.Close()
			return claim{}, fmt.Errorf("look at the lock: %w", err)
		}
		if named, err := os.Stat(path); err == nil && os.SameFile(held, named) {
			return c, nil
		}
		_ = file.Close()
	}
}

func (c claim) read() (claimed, error) {
	var said claimed
	content := make([]byte, 8192)
	n, _ := c.file.ReadAt(content, 0) // the end of the file is an error of ReadAt
	if n == 0 {
		return said, nil // a new file
	}
	if err := json.Unmarshal(content[:n], &said); err != nil {
		return said, fmt.Errorf("read %s: %w", c.file.Name(), err)
	}
	return said, nil
}

// write notes the run folder of a cluster; empty when there is none, which removes the file.
func (c claim) write(run string) error {
	if run == "" {
		return os.Remove(c.file.Name())
	}
	body, err := json.Marshal(claimed{Process: os.Getpid(), Run: run})
	if err != nil {
		return fmt.Errorf("encode the lock: %w", err)
	}
	if err = c.file.Truncate(0); err == nil {
		_, err = c.file.WriteAt(body, 0)
	}
	return err
}

func (c claim) release() { _ = c.file.Close() }
