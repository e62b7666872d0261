// Package archives makes the archives of kubectl scale_to_zero that a release has, one for every platform, with an SBOM of each,
// their checksums and a manifest for krew. The same source and version give the same bytes.
package archives

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Platform is an operating system with an architecture, as Go names them.
type Platform struct{ OS, Architecture string }

// String is the platform as Go writes it.
func (p Platform) String() string { return p.OS + "/" + p.Architecture }

// Platforms are those that a release has an archive for.
func Platforms() []Platform {
	var all []Platform
	for _, system := range []string{"darwin", "linux", "windows"} {
		for _, architecture := range []string{"amd64", "arm64"} {
			all = append(all, Platform{system, architecture})
		}
	}
	return all
}

const (
	// program is the name that kubectl looks for.
	program = "kubectl-scale_to_zero"
	// completion is what kubectl runs to complete the arguments.
	completion = "kubectl_complete-scale_to_zero"
	source     = "plugin/kubectl"
	licence    = "LICENSE"
)

// Release is what the archives are made of.
type Release struct {
	// Module is the directory of the module.
	Module string
	// Version is that of the release, such as v1.2.3.
	Version string
	// Repository is that whose releases have the archives, as an address of GitHub's.
	Repository string
	// Output is the directory that the files are written to.
	Output string
}

// Archive is a file of the release.
type Archive struct {
	Platform
	// Name is the file's name, SHA256 its checksum in hexadecimal, Program the name of the program in it.
	Name, SHA256, Program string
	// SBOM is the name of the file beside it that lists what is in it, and its checksum.
	SBOM, SBOMSHA256 string
}

// address is where a file of the release can be downloaded.
func (r Release) address(file string) string {
	return r.Repository + "/releases/download/" + r.Version + "/" + file
}

// version is a semantic version with a v before it: of other ones krew knows no order.
var version = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)

// Build makes the archives of the platforms.
func (r Release) Build(ctx context.Context, platforms ...Platform) ([]Archive, error) {
	if !version.MatchString(r.Version) {
		return nil, fmt.Errorf("the version is %q; allowed is a semantic version after a v, such as v1.2.3 or v1.2.3-rc.1", r.Version)
	}
	if err := os.MkdirAll(r.Output, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the archives: %w", err)
	}
	var archives []Archive
	for _, platform := range platforms {
		archive, err := r.build(ctx, platform)
		if err != nil {
			return nil, fmt.Errorf("make the archive for %s: %w", platform, err)
		}
		archives = append(archives, archive)
	}
	return archives, nil
}

func (r Release) build(ctx context.Context, platform Platform) (Archive, error) {
	archive := Archive{
		Platform: platform, Program: program,
		Name: strings.Join([]string{program, r.Version, platform.OS, platform.Architecture}, "_") + ".tar.gz",
	}
	script, pack := completion, packTar
	if platform.OS == "windows" {
		archive.Program, archive.Name = program+".exe", strings.TrimSuffix(archive.Name, ".tar.gz")+".zip"
		script, pack = completion+".cmd", packZip
	}
	temporary, err := os.MkdirTemp("", "archive-")
	if err != nil {
		return Archive{}, fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	binary := filepath.Join(temporary, archive.Program)
	if err := r.compile(ctx, platform, binary); err != nil {
		return Archive{}, err
	}
	files := []file{
		{archive.Program, 0o755, binary},
		{script, 0o755, filepath.Join(r.Module, source, script)},
		{licence, 0o644, filepath.Join(r.Module, licence)},
	}
	notices, err := notices(ctx, r.Module, platform)
	if err != nil {
		return Archive{}, err
	}
	path := filepath.Join(r.Output, archive.Name)
	if err := write(path, pack, append(files, notices...)); err != nil {
		return Archive{}, err
	}
	if archive.SHA256, err = sum(path); err != nil {
		return Archive{}, err
	}
	linked, err := modules(binary)
	if err != nil {
		return Archive{}, err
	}
	body, err := r.sbom(archive, linked)
	if err != nil {
		return Archive{}, err
	}
	archive.SBOM = archive.Name + sbomEnding
	path = filepath.Join(r.Output, archive.SBOM)
	if err := os.WriteFile(path, body, 0o644); err != nil {
		return Archive{}, fmt.Errorf("write the SBOM: %w", err)
	}
	archive.SBOMSHA256, err = sum(path)
	return archive, err
}

func (r Release) compile(ctx context.Context, platform Platform, binary string) error {
	command := inModule(ctx, r.Module, platform, "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+r.Version,
		"-o", binary, "./"+source)
	if err := command.Run(); err != nil {
		return fmt.Errorf("compile the program: %w", err)
	}
	return nil
}

// inModule is the go command in the module's directory, for a platform.
func inModule(ctx context.Context, module string, platform Platform, arguments ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, "go", arguments...)
	command.Dir, command.Stderr = module, os.Stderr
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+platform.OS, "GOARCH="+platform.Architecture)
	return command
}

// sum is the checksum of a file.
func sum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", filepath.Base(path), err)
	}
	defer func() { _ = f.Close() }()
	digest := sha256.New()
	if _, err := io.Copy(digest, f); err != nil {
		return "", fmt.Errorf("read %s: %w", filepath.Base(path), err)
	}
	return hex.EncodeToString(digest.Sum(nil)), nil
}

// Checksums are those of the archives and their SBOMs, as sha256sum -c reads them.
func Checksums(archives []Archive) []byte {
	var text strings.Builder
	for _, archive := range archives {
		fmt.Fprintf(&text, "%s  %s\n%s  %s\n", archive.SHA256, archive.Name, archive.SBOMSHA256, archive.SBOM)
	}
	return []byte(text.String())
}
