package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/cnpg-i/scale-to-zero/e2e/images"
)

// suites are the Debian suites that have a major version of PostgreSQL.
var suites = map[string]string{"15": "bookworm", "17": "trixie", "18": "forky"}

// unneeded are packages of PostgreSQL's closure that the server does without: interpreters, compilers, set-up tools.
var unneeded = regexp.MustCompile(`^(perl|libperl|libllvm|libz3|debconf|libdebconfclient|adduser|passwd|postgresql-common|postgresql-client-common|libjson-perl|libipc-run|libio-pty|libtext-|ucf|sensible-utils|ssl-cert|locales|libc-l10n|gcc-|login|sysvinit|init-system|base-passwd|procps|libproc2|libdb5|libsemanage|libsepol|openssl_|netbase|libgdbm)`)

// leftOut are tar's patterns of files that a server does without.
var leftOut = []string{
	"./usr/share/doc*", "./usr/share/man*", "./usr/share/locale*", "./usr/share/lintian*", "./usr/share/info*",
	"*/bitcode*", "*llvmjit*",
}

// rootFiles is what the packages' scripts would have made, with the users as CloudNativePG wants them: PostgreSQL's is 26,
// PgBouncer's is 998 in group 996.
var rootFiles = map[string]string{
	"etc/passwd": "root:x:0:0:root:/root:/bin/bash\npostgres:x:26:26:PostgreSQL:/var/lib/postgresql:/bin/bash\n" +
		"pgbouncer:x:998:996:PgBouncer:/nonexistent:/usr/sbin/nologin\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
	"etc/group":         "root:x:0:\npostgres:x:26:\npgbouncer:x:996:\nnogroup:x:65534:\n",
	"etc/nsswitch.conf": "hosts: files dns\n",
}

const postgresUser = 26

// rootDirectories are those of a root filesystem that no package has.
var rootDirectories = []string{"etc", "tmp", "run/postgresql", "var/lib/postgresql", "proc", "sys", "dev", "controller", "home"}

// devices are what a PostgreSQL that runs by chroot needs of /dev: numbers of the kernel (its admin-guide/devices.txt). Images
// leave them out, since runtimes make their own.
var devices = map[string]int{"null": 1<<8 | 3, "zero": 1<<8 | 5, "random": 1<<8 | 8, "urandom": 1<<8 | 9}

// PostgresFiles makes, unless the cache has it, the root filesystem of a PostgreSQL of the major version. PgBouncer is in it
// too, so that one image serves for clusters and poolers, and pg_cron, an extension with background workers.
func (l Layout) PostgresFiles(ctx context.Context, progress *Progress, major string) (string, error) {
	suite, known := suites[major]
	if !known {
		return "", fmt.Errorf("PostgreSQL %s: there are 15, 17 and 18", major)
	}
	names := []string{"postgresql-" + major, "postgresql-client-" + major, "postgresql-" + major + "-cron", "pgbouncer", "base-files", "bash", "dash", "coreutils", "tzdata"}
	root, err := l.keyed("postgresql-"+major, nil, fmt.Sprint(suite, names, unneeded, leftOut, rootFiles, rootDirectories, devices))
	if err != nil {
		return "", err
	}
	what := fmt.Sprintf("PostgreSQL %s from Debian %s", major, suite)
	return root, l.fill(progress, root, what, func(work, part string) error {
		archives, err := download(ctx, work, suite, withNeeded(names...)...)
		if err != nil {
			return err
		}
		if err := unpack(ctx, archives, part); err != nil {
			return err
		}
		return finish(ctx, part, major)
	})
}

// fill makes a directory of what packages have, unless it is there already. make gets a directory to work in, and one to fill.
func (l Layout) fill(progress *Progress, root, what string, make func(work, part string) error) error {
	if cached(root) {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("make the files of %s, of which some are another user's: this must be run as root", what)
	}
	if err := os.MkdirAll(l.Cache, 0o755); err != nil {
		return fmt.Errorf("make the cache: %w", err)
	}
	progress.Say("unpack %s", what)
	work, err := os.MkdirTemp(l.Cache, "packages-")
	if err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	part := filepath.Join(work, "root")
	if err := make(work, part); err != nil {
		return fmt.Errorf("unpack %s: %w", what, err)
	}
	if err := os.Rename(part, root); err != nil && !cached(root) { // another process may have been quicker
		return fmt.Errorf("keep %s: %w", what, err)
	}
	return nil
}

// aptConfig gives apt a state of its own, in which nothing is installed.
const aptConfig = `Dir::State "@/state"; Dir::State::status "@/state/status"; Dir::Cache "@/cache"; Dir::Etc::sourcelist "@/etc/sources.list";
Dir::Etc::sourceparts "@/etc/sources.list.d"; Dir::Etc::preferencesparts "@/etc/preferences.d";
APT::Install-Recommends "false"; APT::Architecture "` + runtime.GOARCH + `"; APT::Architectures ""; APT::Sandbox::User "root";
`

// download gets packages as apt-get's arguments say, from a suite.
func download(ctx context.Context, work, suite string, arguments ...string) ([]string, error) {
	uri, err := source(ctx)
	if err != nil {
		return nil, err
	}
	for _, directory := range []string{"state/lists/partial", "cache/archives/partial", "etc/preferences.d", "etc/sources.list.d"} {
		if err := os.MkdirAll(filepath.Join(work, directory), 0o755); err != nil {
			return nil, fmt.Errorf("make apt's directories: %w", err)
		}
	}
	for name, content := range map[string]string{
		"state/status":     "",
		"etc/sources.list": fmt.Sprintf("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n", uri, suite),
		"apt.conf":         strings.ReplaceAll(aptConfig, "@", work),
	} {
		if err := writeFile(filepath.Join(work, name), content); err != nil {
			return nil, err
		}
	}
	for _, arguments := range [][]string{{"update"}, arguments} {
		command := exec.CommandContext(ctx, "apt-get", arguments...)
		command.Dir = work
		command.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(work, "apt.conf"))
		if out, err := command.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("apt-get %s: %w: %s", arguments[0], err, out)
		}
	}
	found, err := filepath.Glob(filepath.Join(work, "cache/archives/*.deb"))
	if len(found) == 0 && err == nil { // apt-get download has them in its working directory
		found, err = filepath.Glob(filepath.Join(work, "*.deb"))
	}
	return found, err
}

// withNeeded are apt-get's arguments for packages and everything that they need.
func withNeeded(names ...string) []string {
	return append([]string{"install", "-y", "--no-install-recommends", "--download-only"}, names...)
}

// unpack makes a root filesystem of packages without running anything of theirs.
func unpack(ctx context.Context, archives []string, root string) error {
	for _, directory := range []string{"bin", "sbin", "lib", "lib64"} { // merged, as Debian has it
		made, link := filepath.Join(root, "usr", directory), filepath.Join(root, directory)
		if err := errors.Join(os.MkdirAll(made, 0o755), os.Symlink("usr/"+directory, link)); err != nil {
			return fmt.Errorf("make /%s: %w", directory, err)
		}
	}
	extract := `dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" --keep-directory-symlink --no-same-owner`
	for _, pattern := range leftOut {
		extract += " --exclude='" + pattern + "'"
	}
	for _, archive := range archives {
		if unneeded.MatchString(filepath.Base(archive)) {
			continue
		}
		if _, err := do(ctx, "bash", "-o", "pipefail", "-c", extract, "unpack", archive, root); err != nil {
			return err
		}
	}
	return nil
}

// version is what a PostgreSQL says of itself; one that is not released yet says `18beta1`.
var version = regexp.MustCompile(`\(PostgreSQL\) ([0-9]+(\.[0-9]+|[a-z]+[0-9]*))`)

// PostgresImage makes, unless the cache has it, the image of a PostgreSQL of the major version, and returns its archive and
// its name, whose tag begins with the version, because the operator reads the major version there. An image to which a cluster of
// an older major version is upgraded has the files of that version below its own: pg_upgrade starts the older server with the
// libraries of the image, and those of another Debian have other names.
func (l Layout) PostgresImage(ctx context.Context, progress *Progress, major string, older ...string) (archive, name string, err error) {
	root, err := l.PostgresFiles(ctx, progress, major)
	if err != nil {
		return "", "", err
	}
	var layers []images.Layer
	tag := ""
	for _, version := range older {
		files, err := l.PostgresFiles(ctx, progress, version)
		if err != nil {
			return "", "", err
		}
		layers, tag = append(layers, images.Directory(files)), tag+"-"+version
	}
	said, err := do(ctx, "chroot", root, "/usr/bin/postgres", "--version")
	if err != nil {
		return "", "", err
	}
	found := version.FindStringSubmatch(said)
	if found == nil {
		return "", "", fmt.Errorf("PostgreSQL says that its version is %q", said)
	}
	tag = found[1] + tag
	name, archive = "localhost/postgresql:"+tag, root+"-"+tag+".tar"
	config := images.Config{
		User: "26", Cmd: []string{"postgres"},
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"},
	}
	return archive, name, writeImage(progress, archive, name, config, append(layers, images.Directory(root))...)
}
