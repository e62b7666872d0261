// Package prestop tells the preStop hook of PostgreSQL's container that its pod is about to be deleted because the cluster
// falls asleep. The hook then delays PostgreSQL's shutdown for a moment: until the nodes route the Service elsewhere, clients
// still arrive, and a server that is shutting down would refuse them. At any other deletion the file does not exist.
package prestop

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Marker is a file shared by both containers. The zero value has no path and does nothing.
type Marker struct{ Path string }

// Leave creates the file.
func (m Marker) Leave() error {
	if m.Path == "" {
		return nil
	}
	if err := os.WriteFile(m.Path, nil, 0o644); err != nil { // another container of the pod reads it
		return fmt.Errorf("leave the marker for the preStop hook: %w", err)
	}
	return nil
}

// Remove removes the file, if it exists.
func (m Marker) Remove() error {
	if m.Path == "" {
		return nil
	}
	if err := os.Remove(m.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the marker for the preStop hook: %w", err)
	}
	return nil
}
