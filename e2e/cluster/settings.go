package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// setting is a setting of the machine's kernel.
type setting struct{ file, value string }

// set notes what the settings are, and changes them in their order.
func (l Layout) set(wanted []setting) error {
	var before strings.Builder
	for _, s := range wanted {
		content, err := os.ReadFile(s.file)
		if err != nil {
			return fmt.Errorf("read a setting of the kernel: %w", err)
		}
		fmt.Fprintln(&before, s.file, strings.TrimSpace(string(content)))
	}
	if err := writeFile(l.run("settings"), before.String()); err != nil {
		return err
	}
	for _, s := range wanted {
		if err := os.WriteFile(s.file, []byte(s.value+"\n"), 0o644); err != nil {
			return fmt.Errorf("change a setting of the kernel: %w", err)
		}
	}
	return nil
}

// restoreSettings puts the settings back, the last one first.
func (l Layout) restoreSettings() error {
	before, err := os.ReadFile(l.run("settings"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read which settings the kernel had: %w", err)
	}
	lines := slices.Collect(strings.Lines(string(before)))
	var failures []error
	for _, line := range slices.Backward(lines) {
		file, value, _ := strings.Cut(line, " ")
		if err := os.WriteFile(file, []byte(value), 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failures = append(failures, fmt.Errorf("put a setting of the kernel back: %w", err))
		}
	}
	return errors.Join(failures...)
}
