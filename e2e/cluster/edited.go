package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// edit replaces a text, which must be there, in a file of a module.
type edit struct{ file, old, new string }

// edits let a release of the operator be compiled with older modules than it requires (replace in build/operator/go.mod): they leave
// out the calls that these lack, which remove a log file that is no FIFO, add options of barman, and write every line of a burst of logs.
var edits = map[string][]edit{
	"1.30.1": {
		{"pkg/management/postgres/logpipe/fifo.go", "compatibility.ErrExistsNotFifo", "os.ErrExist"},
		{"pkg/management/postgres/restore.go", "options = barmanConfiguration.Data.AppendRestoreAdditionalCommandArgs(options)", ""},
		{"cmd/manager/main.go", "loggingOptions(cmd)...", ""},
		{"cmd/manager/main.go", "[]log.ConfigureOption {", "[]any {"},
		{"cmd/manager/main.go", "[]log.ConfigureOption{log.WithDisabledSampling()}", "[]any{nil}"},
	},
}

// edited copies the operator's module into a folder, with the edits, and returns a go.mod that builds from this copy. `go build -overlay`
// refuses to replace files of the module cache.
func (m module) edited(ctx context.Context, folder string) (string, error) {
	root, err := m.directoryOf(ctx, operatorPath)
	if err != nil {
		return "", err
	}
	source := filepath.Join(folder, "source")
	if err := errors.Join(os.RemoveAll(folder), os.MkdirAll(folder, 0o755), os.CopyFS(source, os.DirFS(root))); err != nil {
		return "", fmt.Errorf("copy the operator's module: %w", err)
	}
	for _, e := range m.edits {
		file := filepath.Join(source, e.file)
		content, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("read what is edited: %w", err)
		}
		if !strings.Contains(string(content), e.old) {
			return "", fmt.Errorf("edit %s: it does not contain %q", e.file, e.old)
		}
		if err := writeFile(file, strings.ReplaceAll(string(content), e.old, e.new)); err != nil {
			return "", err
		}
	}
	pins, err := os.ReadFile(filepath.Join(m.directory, m.file))
	sums, failed := os.ReadFile(filepath.Join(m.directory, strings.TrimSuffix(m.file, ".mod")+".sum"))
	if err := errors.Join(err, failed); err != nil {
		return "", fmt.Errorf("read the operator's go.mod and go.sum: %w", err)
	}
	file := filepath.Join(folder, "go.mod")
	return file, errors.Join(writeFile(file, fmt.Sprintf("%s\nreplace %s => %s\n", pins, operatorPath, source)),
		writeFile(filepath.Join(folder, "go.sum"), string(sums)))
}
