// Package images writes container images as docker-archive tarballs, without a daemon, a registry or a base image. The same
// content gives the same bytes.
package images

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// epoch is the time of everything in an image.
var epoch = time.Unix(0, 0).UTC()

// Config is the part of an image's configuration that is used here; the field names are those of the format.
type Config struct {
	User       string   `json:"User,omitempty"`
	Env        []string `json:"Env,omitempty"`
	Entrypoint []string `json:"Entrypoint,omitempty"`
	Cmd        []string `json:"Cmd,omitempty"`
	WorkingDir string   `json:"WorkingDir,omitempty"`
}

// image is the configuration object of an image (the OCI image specification, which containerd reads of both formats).
type image struct {
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Created      time.Time `json:"created"`
	Config       Config    `json:"config"`
	RootFS       struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// Write makes the file an image of the given name for this machine's architecture, with its layers from the lowest to the
// highest. The file is there only when it is complete.
func Write(file, name string, config Config, layers ...Layer) error {
	described := image{Architecture: runtime.GOARCH, OS: "linux", Created: epoch, Config: config}
	described.RootFS.Type, described.RootFS.DiffIDs = "layers", []string{}
	manifest := struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{RepoTags: []string{name}, Layers: []string{}}
	var entries []entry
	defer func() {
		for _, e := range entries {
			e.close()
		}
	}()
	for _, layer := range layers {
		written, digest, err := spool(filepath.Dir(file), layer)
		if err != nil {
			return fmt.Errorf("write a layer of %s: %w", name, err)
		}
		entries = append(entries, written)
		described.RootFS.DiffIDs = append(described.RootFS.DiffIDs, "sha256:"+digest)
		manifest.Layers = append(manifest.Layers, written.name)
	}
	body, err := json.Marshal(described)
	if err != nil {
		return fmt.Errorf("encode the configuration of %s: %w", name, err)
	}
	sum := sha256.Sum256(body)
	manifest.Config = hex.EncodeToString(sum[:]) + ".json"
	list, err := json.Marshal([]any{manifest})
	if err != nil {
		return fmt.Errorf("encode the manifest of %s: %w", name, err)
	}
	entries = append([]entry{{name: "manifest.json", content: list}, {name: manifest.Config, content: body}}, entries...)
	return writeArchive(file, entries)
}

// entry is a file of the archive: its content, or a layer that was spooled to a temporary file.
type entry struct {
	name    string
	content []byte
	spooled *os.File
}

func (e entry) close() {
	if e.spooled != nil {
		_ = e.spooled.Close()
		_ = os.Remove(e.spooled.Name())
	}
}

// spool writes a layer to a temporary file, since its digest and size stand before it in the archive.
func spool(directory string, layer Layer) (entry, string, error) {
	file, err := os.CreateTemp(directory, ".layer-*")
	if err != nil {
		return entry{}, "", fmt.Errorf("make a temporary file: %w", err)
	}
	written, digest := entry{spooled: file}, sha256.New()
	out := tar.NewWriter(io.MultiWriter(file, digest))
	if err := layer(out); err != nil {
		written.close()
		return entry{}, "", err
	}
	if err := out.Close(); err != nil {
		written.close()
		return entry{}, "", fmt.Errorf("end the layer: %w", err)
	}
	sum := hex.EncodeToString(digest.Sum(nil))
	written.name = sum + ".tar"
	return written, sum, nil
}

func (e entry) writeTo(archive *tar.Writer) error {
	header := &tar.Header{Name: e.name, Mode: 0o644, Size: int64(len(e.content)), ModTime: epoch}
	if e.spooled != nil {
		size, err := e.spooled.Seek(0, io.SeekEnd)
		if err != nil {
			return fmt.Errorf("measure %s: %w", e.name, err)
		}
		if _, err := e.spooled.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("rewind %s: %w", e.name, err)
		}
		header.Size = size
	}
	if err := archive.WriteHeader(header); err != nil {
		return fmt.Errorf("write %s: %w", e.name, err)
	}
	if e.spooled == nil {
		if _, err := archive.Write(e.content); err != nil {
			return fmt.Errorf("write %s: %w", e.name, err)
		}
		return nil
	}
	if _, err := io.Copy(archive, e.spooled); err != nil {
		return fmt.Errorf("write %s: %w", e.name, err)
	}
	return nil
}

func writeArchive(file string, entries []entry) (err error) {
	out, err := os.Create(file + ".part")
	if err != nil {
		return fmt.Errorf("make %s: %w", file, err)
	}
	defer func() {
		if err != nil {
			_ = out.Close()
			_ = os.Remove(out.Name())
		}
	}()
	archive := tar.NewWriter(out)
	for _, e := range entries {
		if err := e.writeTo(archive); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("end %s: %w", file, err)
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	if err := os.Rename(out.Name(), file); err != nil {
		return fmt.Errorf("keep %s: %w", file, err)
	}
	return nil
}
