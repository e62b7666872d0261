package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestTheSameContentGivesTheSameImage(t *testing.T) {
	t.Parallel()
	var archives [2][]byte
	for i := range archives {
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "program"), []byte("x"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("program", filepath.Join(root, "link")); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(root, "program"), time.Now(), time.Unix(int64(i), 0)); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "image.tar")
		if err := Write(file, "localhost/thing:1", root, Config{Entrypoint: []string{"/program"}, User: "65532:65532"}); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		archives[i] = content
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the archives differ")
	}
	entries := map[string][]byte{}
	for reader := tar.NewReader(bytes.NewReader(archives[0])); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if entries[header.Name], err = io.ReadAll(reader); err != nil {
			t.Fatal(err)
		}
	}
	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(entries["manifest.json"], &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 1 || manifest[0].RepoTags[0] != "localhost/thing:1" || entries[manifest[0].Config] == nil || entries[manifest[0].Layers[0]] == nil {
		t.Errorf("the manifest is %+v, the archive has %d entries", manifest, len(entries))
	}
}
