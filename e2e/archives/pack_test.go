package archives

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// entry is what an archive says of a file.
type entry struct {
	Mode, Content string
}

// unpack reads an archive, by the ending of its name.
func unpack(t *testing.T, name string, archive []byte) map[string]entry {
	t.Helper()
	found := map[string]entry{}
	add := func(name, mode string, content io.Reader) {
		body, err := io.ReadAll(content)
		if err != nil {
			t.Fatal(err)
		}
		found[name] = entry{mode, string(body)}
	}
	if filepath.Ext(name) == ".zip" {
		zipped, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range zipped.File {
			content, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			add(f.Name, f.Mode().String(), content)
		}
		return found
	}
	plain, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	reader := tar.NewReader(plain)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		add(header.Name, header.FileInfo().Mode().String(), reader)
	}
}

func TestPack_theSameContentGivesTheSameBytes(t *testing.T) {
	t.Parallel()
	for name, pack := range map[string]func(io.Writer, []file) error{"a.tar.gz": packTar, "a.zip": packZip} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			made := func(at time.Time, mode os.FileMode) []byte {
				path := filepath.Join(t.TempDir(), "content")
				if err := os.WriteFile(path, []byte("text"), mode); err != nil {
					t.Fatal(err)
				}
				if err := os.Chtimes(path, at, at); err != nil {
					t.Fatal(err)
				}
				var out bytes.Buffer
				if err := pack(&out, []file{{"program", 0o755, path}, {"licenses/example.com/a/LICENSE", 0o644, path}}); err != nil {
					t.Fatal(err)
				}
				return out.Bytes()
			}
			first := made(time.Now(), 0o600)
			if !bytes.Equal(first, made(time.Now().Add(-time.Hour), 0o644)) {
				t.Error("the bytes depend on the files' times or modes")
			}
			want := map[string]entry{"program": {"-rwxr-xr-x", "text"}, "licenses/example.com/a/LICENSE": {"-rw-r--r--", "text"}}
			if diff := cmp.Diff(want, unpack(t, name, first)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWrite_leavesNoPartOfAnArchive(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.zip")
	if err := write(path, packZip, []file{{"a", 0o644, path + ".absent"}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the error is %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an archive is left: %v", err)
	}
}
