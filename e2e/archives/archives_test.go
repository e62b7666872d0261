package archives

import (
	"bytes"
	"debug/elf"
	"debug/macho"
	"debug/pe"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

const repository = "https://github.com/cnpg-i/scale-to-zero"

// krew is the path of a program of krew, which the build cache keeps.
func krew(t *testing.T, name string) string {
	t.Helper()
	tool := exec.CommandContext(t.Context(), "go", "tool", "-n", name)
	tool.Dir, tool.Stderr = "../build/krew", os.Stderr
	out, err := tool.Output()
	if err != nil {
		t.Fatalf("build %s: %v", name, err)
	}
	return strings.TrimSpace(string(out))
}

// validate has krew read a manifest as it does for its index, and returns the manifest's file.
func validate(t *testing.T, validation string, manifest []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), Krew+".yaml")
	if err := os.WriteFile(path, manifest, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), validation, "-skip-install", "-manifest", path).CombinedOutput(); err != nil {
		t.Errorf("krew does not accept the manifest: %v: %s\n%s", err, out, manifest)
	}
	return path
}

func TestBuild_refusesWhatIsNoVersion(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"", "dev", "1.2.3", "v1.2", "v01.2.3", "v1.2.3 -x"} {
		_, err := Release{Module: "../..", Version: version, Output: t.TempDir()}.Build(t.Context())
		if err == nil || !strings.Contains(err.Error(), "allowed is a semantic version") {
			t.Errorf("%q: %v", version, err)
		}
	}
}

func TestManifest_isAcceptedByKrew(t *testing.T) {
	t.Parallel()
	validation := krew(t, "validate-krew-manifest")
	for _, version := range []string{"v1.2.3", "v1.2.3-rc.1"} {
		var archives []Archive
		for _, platform := range Platforms() {
			archives = append(archives, Archive{Platform: platform, Name: "a.tar.gz", SHA256: strings.Repeat("0a", 32), Program: program})
		}
		manifest, err := Release{Version: version, Repository: repository}.Manifest(archives)
		if err != nil {
			t.Fatal(err)
		}
		validate(t, validation, manifest)
	}
}

// installed has krew install an archive, for its platform, and returns where its programs are.
func installed(t *testing.T, installer, described, path string, platform Platform) string {
	t.Helper()
	root := t.TempDir()
	install := exec.CommandContext(t.Context(), installer, "install", "--manifest", described, "--archive", path)
	install.Env = append(os.Environ(), "KREW_ROOT="+root, "KREW_OS="+platform.OS, "KREW_ARCH="+platform.Architecture)
	if out, err := install.CombinedOutput(); err != nil {
		t.Errorf("install %s: %v: %s", filepath.Base(path), err, out)
	}
	return filepath.Join(root, "bin")
}

// made builds archives into a directory of the test's, with their manifest as krew accepts it.
func made(t *testing.T, platforms ...Platform) (release Release, archives []Archive, described string) {
	t.Helper()
	release = Release{Module: "../..", Version: "v1.2.3", Repository: repository, Output: t.TempDir()}
	archives, err := release.Build(t.Context(), platforms...)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := release.Manifest(archives)
	if err != nil {
		t.Fatal(err)
	}
	return release, archives, validate(t, krew(t, "validate-krew-manifest"), manifest)
}

func TestBuild_thisMachinesArchiveIsInstalledAndRuns(t *testing.T) {
	t.Parallel()
	here := Platform{runtime.GOOS, runtime.GOARCH}
	release, archives, described := made(t, here)
	path := filepath.Join(release.Output, archives[0].Name)
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	namesWhatIsLinked(t, release, archives[0], unpack(t, archives[0].Name, body))
	programs := installed(t, krew(t, "krew"), described, path, here)
	out, err := exec.CommandContext(t.Context(), filepath.Join(programs, program), "--version").CombinedOutput()
	if err != nil || string(out) != "kubectl scale_to_zero version v1.2.3\n" {
		t.Errorf("it says %q (%v)", out, err)
	}
	_, anew, _ := made(t, here)
	if anew[0] != archives[0] {
		t.Errorf("made anew it is %v, not %v", anew[0], archives[0])
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--strict", "-c", "-")
	check.Dir, check.Stdin = release.Output, bytes.NewReader(Checksums(archives))
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("the checksums: %v: %s", err, out)
	}
}

func TestBuild_everyPlatformsArchiveHoldsItsProgram(t *testing.T) {
	t.Parallel()
	if os.Getenv("EVERY_PLATFORM") == "" {
		t.Skip("EVERY_PLATFORM is not set: it compiles the program for six platforms (make test-archives)")
	}
	release, archives, described := made(t, Platforms()...)
	installer := krew(t, "krew")
	for _, archive := range archives {
		path := filepath.Join(release.Output, archive.Name)
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files := unpack(t, archive.Name, body)
		namesWhatIsLinked(t, release, archive, files)
		if got := platformOf([]byte(files[archive.Program].Content)); got != archive.Platform {
			t.Errorf("%s holds a program for %q", archive.Name, got)
		}
		for _, name := range []string{"LICENSE", "licenses/LICENSE.go", "licenses/k8s.io/client-go/LICENSE", "licenses/github.com/spf13/cobra/LICENSE.txt"} {
			if files[name].Content == "" {
				t.Errorf("%s has no %s", archive.Name, name)
			}
		}
		installed(t, installer, described, path, archive.Platform)
	}
}

// platformOf reads for which platform a program is.
func platformOf(program []byte) Platform {
	reader := bytes.NewReader(program)
	if f, err := elf.NewFile(reader); err == nil {
		return Platform{"linux", map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}[f.Machine]}
	}
	if f, err := macho.NewFile(reader); err == nil {
		return Platform{"darwin", map[macho.Cpu]string{macho.CpuAmd64: "amd64", macho.CpuArm64: "arm64"}[f.Cpu]}
	}
	if f, err := pe.NewFile(reader); err == nil {
		return Platform{"windows", map[uint16]string{pe.IMAGE_FILE_MACHINE_AMD64: "amd64", pe.IMAGE_FILE_MACHINE_ARM64: "arm64"}[f.Machine]}
	}
	return Platform{}
}
