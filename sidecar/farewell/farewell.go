// Package farewell tells the PostgreSQL container's preStop hook that its pod is about to be deleted because the cluster
// falls asleep. The hook then lets PostgreSQL serve for a moment longer: until the nodes know that the Service leads elsewhere,
// clients still arrive, and a server that has begun to shut down would refuse them. At every other deletion it only looks for the file.
package farewell

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Note is a file that both containers see. The zero value, without a path, leaves none.
type Note struct{ Path string }

// Leave writes it.
func (n Note) Leave() error {
	if n.Path == "" {
		return nil
	}
	if err := os.WriteFile(n.Path, nil, 0o644); err != nil { //nolint:gosec // another container of the pod looks for it
		return fmt.Errorf("leave a note for the preStop hook: %w", err)
	}
	return nil
}

// TakeBack removes it; that it is not there is no error.
func (n Note) TakeBack() error {
	if n.Path == "" {
		return nil
	}
	if err := os.Remove(n.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("take the note for the preStop hook back: %w", err)
	}
	return nil
}
