// Package prestop shows the preStop hook of PostgreSQL's container that its pod is about to be deleted because the cluster
// falls asleep. The hook then lets PostgreSQL serve for a moment longer: until the nodes know that the Service leads
// elsewhere, clients still arrive, and a server that has begun to shut down would refuse them. At every other deletion it
// only finds no file.
package prestop

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Marker is a file that both containers see. The zero value, without a path, is none.
type Marker struct{ Path string }

// Leave writes it.
func (m Marker) Leave() error {
	if m.Path == "" {
		return nil
	}
	if err := os.WriteFile(m.Path, nil, 0o644); err != nil { //nolint:gosec // another container of the pod reads it
		return fmt.Errorf("leave the marker for the preStop hook: %w", err)
	}
	return nil
}

// Remove removes it; that it is not there is no error.
func (m Marker) Remove() error {
	if m.Path == "" {
		return nil
	}
	if err := os.Remove(m.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the marker for the preStop hook: %w", err)
	}
	return nil
}
