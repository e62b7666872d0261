package process

import (
	"fmt"
	"os"
)

// WriteFile replaces a file that only this user can read. A process that is killed meanwhile leaves the old content.
func WriteFile(path string, body []byte) error {
	fresh := path + ".new"
	if err := os.WriteFile(fresh, body, 0o600); err != nil {
		return fmt.Errorf("write the new content: %w", err)
	}
	if err := os.Rename(fresh, path); err != nil {
		return fmt.Errorf("replace the file: %w", err)
	}
	return nil
}
