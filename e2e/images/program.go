package images

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

func sortedKeys(m map[string][]byte) []string { return slices.Sorted(maps.Keys(m)) }

// Program describes an image that holds one Go program and nothing else, like the images of the Dockerfiles.
type Program struct {
	// Module is the directory of the module, Package the program's path in it.
	Module, Package string
	// Binary is the file's name at the root of the image, and its entry point.
	Binary string
	// Version is linked into main.version.
	Version string
	// Name is the image's name, with its tag.
	Name string
}

// Build compiles the program and writes its image to the file.
func (p Program) Build(file string) error {
	root, err := os.MkdirTemp("", "image-")
	if err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(root) }()
	command := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version="+p.Version,
		"-o", filepath.Join(root, p.Binary), p.Package)
	command.Dir, command.Env = p.Module, append(os.Environ(), "CGO_ENABLED=0")
	command.Stderr = os.Stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("compile %s: %w", p.Package, err)
	}
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		return fmt.Errorf("make /etc: %w", err)
	}
	passwd := "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n"
	if err := os.WriteFile(filepath.Join(root, "etc", "passwd"), []byte(passwd), 0o644); err != nil {
		return fmt.Errorf("write /etc/passwd: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make the directory of %s: %w", file, err)
	}
	return Write(file, p.Name, root, Config{User: "65532:65532", Entrypoint: []string{"/" + p.Binary}, WorkingDir: "/"})
}
