package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// marker is a file that tells the preStop hook of PostgreSQL's container that its pod is about to be deleted because
// the cluster falls asleep. The hook then delays PostgreSQL's shutdown for a moment: until the nodes route the Service
// elsewhere, clients still arrive, and a server that is shutting down would refuse them. At any other deletion the file
// does not exist. The zero value has no path and does nothing.
type marker struct{ path string }

// Leave creates the file.
func (m marker) Leave() error {
	if m.path == "" {
		return nil
	}
	if err := os.WriteFile(m.path, nil, 0o644); err != nil { // another container of the pod reads it
		return fmt.Errorf("leave the marker for the preStop hook: %w", err)
	}
	return nil
}

// Remove removes the file, if it exists.
func (m marker) Remove() error {
	if m.path == "" {
		return nil
	}
	if err := os.Remove(m.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the marker for the preStop hook: %w", err)
	}
	return nil
}
