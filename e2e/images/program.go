package images

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
)

// Program describes an image that holds one Go program, or some, and nothing else, like the images of the Dockerfiles.
type Program struct {
	// Module is the directory of the module, Package the program's path in it, whose last part is the file's name at the root of the
	// image, and its entry point.
	Module, Package string
	// Beside are the packages of further programs at the root of the image, each by the name of its file.
	Beside map[string]string
	// Version is linked into main.version.
	Version string
	// Name is the image's name, with its tag.
	Name string
}

// base is what is below every program: a user that is not root (65532, as the distroless images have it), and a place for
// temporary files.
func base() Layer {
	return Files(
		File{Name: "etc", Mode: fs.ModeDir | 0o755},
		File{Name: "etc/passwd", Mode: 0o644, Content: []byte("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n")},
		File{Name: "etc/group", Mode: 0o644, Content: []byte("root:x:0:\nnonroot:x:65532:\n")},
		File{Name: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
	)
}

// Build compiles the programs for this machine's architecture and writes their image to the file.
func (p Program) Build(ctx context.Context, file string) error {
	temporary, err := os.MkdirTemp("", "image-")
	if err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make the directory of %s: %w", file, err)
	}
	packages := map[string]string{path.Base(p.Package): p.Package}
	maps.Copy(packages, p.Beside)
	var programs []File
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		binary := filepath.Join(temporary, name)
		if err := p.compile(ctx, packages[name], binary); err != nil {
			return err
		}
		programs = append(programs, File{Name: name, Mode: 0o755, From: binary})
	}
	return Write(file, p.Name, p.config(), base(), Files(programs...))
}

func (p Program) compile(ctx context.Context, source, binary string) error {
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w -X main.version="+p.Version, "-o", binary, source)
	command.Dir, command.Env, command.Stderr = p.Module, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux"), os.Stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("compile %s: %w", source, err)
	}
	return nil
}

func (p Program) config() Config {
	return Config{
		User: "65532:65532", Entrypoint: []string{"/" + path.Base(p.Package)}, WorkingDir: "/",
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	}
}
