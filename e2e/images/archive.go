// Package images writes container images as docker-archive tarballs, without a daemon, a registry or a base image. The same
// content gives the same bytes.
package images

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
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

// image is the configuration object of an image (OCI image specification), which containerd also reads in docker-archive tarballs.
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
	parts, err := os.MkdirTemp(filepath.Dir(file), ".image-*")
	if err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(parts) }()
	entries := make([]File, 2, 2+len(layers)) // what describes the layers stands before them
	for i, layer := range layers {
		path := filepath.Join(parts, strconv.Itoa(i))
		digest, err := writeTar(path, layer)
		if err != nil {
			return fmt.Errorf("write a layer of %s: %w", name, err)
		}
		described.RootFS.DiffIDs = append(described.RootFS.DiffIDs, "sha256:"+digest)
		manifest.Layers = append(manifest.Layers, digest+".tar")
		entries = append(entries, File{Name: digest + ".tar", Mode: 0o644, From: path})
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
	entries[0] = File{Name: "manifest.json", Mode: 0o644, Content: list}
	entries[1] = File{Name: manifest.Config, Mode: 0o644, Content: body}
	archive := filepath.Join(parts, "archive")
	if _, err := writeTar(archive, Files(entries...)); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return os.Rename(archive, file)
}

// writeTar writes a layer into a new file, and returns the digest of that.
func writeTar(path string, layer Layer) (string, error) {
	file, err := os.Create(path)
	if err != nil {
		return "", err
	}
	digest := sha256.New()
	out := tar.NewWriter(io.MultiWriter(file, digest))
	err = errors.Join(layer(out), out.Close(), file.Close())
	return hex.EncodeToString(digest.Sum(nil)), err
}
