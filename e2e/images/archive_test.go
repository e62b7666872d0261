package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// member is a file of a tarball.
type member struct {
	*tar.Header
	content []byte
}

func members(t *testing.T, archive []byte) []member {
	t.Helper()
	var found []member
	for reader := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, member{header, content})
	}
}

// describe tells everything about an archive that a runtime could see.
func describe(t *testing.T, archive []byte) string {
	t.Helper()
	var out strings.Builder
	for _, m := range members(t, archive) {
		if !strings.HasSuffix(m.Name, ".tar") {
			fmt.Fprintf(&out, "%s\n%s\n", m.Name, m.content)
			continue
		}
		fmt.Fprintf(&out, "%s\n", m.Name)
		for _, file := range members(t, m.content) {
			fmt.Fprintf(&out, "  %s %d:%d %s%s %q\n", file.FileInfo().Mode(), file.Uid, file.Gid, file.Name,
				strings.TrimSuffix(" -> "+file.Linkname, " -> "), file.content)
		}
	}
	return out.String()
}

func write(t *testing.T, layers ...Layer) []byte {
	t.Helper()
	directory := t.TempDir()
	file := filepath.Join(directory, "image.tar")
	config := Program{Package: "./program"}.config()
	if err := Write(file, "localhost/thing:1", config, layers...); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(directory); err != nil || len(left) != 1 {
		t.Errorf("the directory of the image has other files too: %v, %v", left, err)
	}
	return content
}

func TestImageOfAProgram(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "built")
	if err := os.WriteFile(binary, []byte("a program"), 0o700); err != nil {
		t.Fatal(err)
	}
	archive := write(t, base(), Files(File{Name: "program", Mode: 0o755, From: binary}, File{Name: "alias", Link: "program"}))
	// The architecture is the only thing that differs between machines; it is part of the configuration, and so of its name.
	if runtime.GOARCH != "amd64" {
		t.Skip("the golden file is of amd64")
	}
	const golden = "testdata/program.txt"
	got := describe(t, archive)
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("the image differs from %s (-want +got; go test -update writes it anew):\n%s", golden, diff)
	}
}

func TestTheSameContentGivesTheSameImage(t *testing.T) {
	t.Parallel()
	var archives [2][]byte
	for i := range archives {
		root := t.TempDir()
		for _, name := range []string{"program", "other"} {
			path := filepath.Join(root, name)
			if err := os.WriteFile(path, []byte("x"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, time.Now(), time.Unix(int64(i), 0)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("program", filepath.Join(root, "link")); err != nil {
			t.Fatal(err)
		}
		archives[i] = write(t, Directory(root))
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the archives differ")
	}
}

func TestAManifestNamesWhatIsThere(t *testing.T) {
	t.Parallel()
	archive := write(t, Files(File{Name: "a", Mode: 0o644}), Files(File{Name: "b", Mode: fs.ModeDir | 0o755}))
	there := map[string][]byte{}
	for _, m := range members(t, archive) {
		there[m.Name] = m.content
	}
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(there["manifest.json"], &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 1 || len(manifest[0].Layers) != 2 || manifest[0].RepoTags[0] != "localhost/thing:1" {
		t.Fatalf("the manifest is %+v", manifest)
	}
	for _, name := range append(manifest[0].Layers, manifest[0].Config) {
		if there[name] == nil {
			t.Errorf("%s is not there", name)
		}
	}
}

func TestAFailedImageLeavesNoFile(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	err := Write(filepath.Join(directory, "image.tar"), "localhost/thing:1", Config{}, base(),
		Files(File{Name: "program", From: filepath.Join(directory, "nothing")}))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the error is %v, want one of a file that is not there", err)
	}
	if left, err := os.ReadDir(directory); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
