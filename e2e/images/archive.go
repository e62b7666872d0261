// Package images writes container images as docker-archive tarballs, without a daemon, a registry or a base image.
package images

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// epoch is the time of everything in an image, so that the same content gives the same image.
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

// Write makes the file an image of the given name with one layer, the directory root.
func Write(file, name, root string, config Config) error {
	layer, err := os.CreateTemp(filepath.Dir(file), ".layer-*")
	if err != nil {
		return fmt.Errorf("make a temporary file: %w", err)
	}
	defer func() { _ = layer.Close(); _ = os.Remove(layer.Name()) }()
	digest := sha256.New()
	if err := writeLayer(io.MultiWriter(layer, digest), root); err != nil {
		return fmt.Errorf("write the layer of %s: %w", name, err)
	}
	described := image{Architecture: runtime.GOARCH, OS: "linux", Created: epoch, Config: config}
	described.RootFS.Type, described.RootFS.DiffIDs = "layers", []string{"sha256:" + hex.EncodeToString(digest.Sum(nil))}
	body, err := json.Marshal(described)
	if err != nil {
		return fmt.Errorf("encode the configuration of %s: %w", name, err)
	}
	sum := sha256.Sum256(body)
	configName := hex.EncodeToString(sum[:]) + ".json"
	manifest, err := json.Marshal([]map[string]any{{"Config": configName, "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return fmt.Errorf("encode the manifest of %s: %w", name, err)
	}
	return writeArchive(file, layer, map[string][]byte{"manifest.json": manifest, configName: body})
}

func writeArchive(file string, layer *os.File, small map[string][]byte) (err error) {
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
	for _, name := range sortedKeys(small) {
		header := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(small[name])), ModTime: epoch}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		if _, err := archive.Write(small[name]); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	size, err := layer.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("measure the layer: %w", err)
	}
	if _, err := layer.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("rewind the layer: %w", err)
	}
	if err := archive.WriteHeader(&tar.Header{Name: "layer.tar", Mode: 0o644, Size: size, ModTime: epoch}); err != nil {
		return fmt.Errorf("write the layer: %w", err)
	}
	if _, err := io.Copy(archive, layer); err != nil {
		return fmt.Errorf("write the layer: %w", err)
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return os.Rename(out.Name(), file)
}

// writeLayer writes a directory as a layer; WalkDir goes through it in the order of names.
func writeLayer(out io.Writer, root string) error {
	layer := tar.NewWriter(out)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil || relative == "." {
			return err
		}
		return writeEntry(layer, path, relative, info)
	})
	if err != nil {
		return err
	}
	return layer.Close()
}

func writeEntry(layer *tar.Writer, path, name string, info fs.FileInfo) error {
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		var err error
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	if !info.Mode().IsRegular() && !info.IsDir() && target == "" {
		return nil // a socket or a device that a server left in the directory
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	header.Name, header.ModTime, header.AccessTime, header.ChangeTime = name, epoch, time.Time{}, time.Time{}
	header.Uname, header.Gname, header.Format = "", "", tar.FormatPAX
	if info.IsDir() {
		header.Name += "/"
	}
	if err := layer.WriteHeader(header); err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	content, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }()
	_, err = io.Copy(layer, content)
	return err
}
