package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cnpg-i/scale-to-zero/e2e/images"
)

// suites are the Debian suites that have a major version of PostgreSQL.
var suites = map[string]string{"15": "bookworm", "17": "trixie", "18": "forky"}

// unneeded are packages of PostgreSQL's closure that the server does without: interpreters, compilers, set-up tools.
var unneeded = regexp.MustCompile(`^(perl|libperl|libllvm|libz3|debconf|libdebconfclient|adduser|passwd|postgresql-common|postgresql-client-common|libjson-perl|libipc-run|libio-pty|libtext-|ucf|sensible-utils|ssl-cert|locales|libc-l10n|gcc-|login|sysvinit|init-system|base-passwd|procps|libproc2|libdb5|libsemanage|libsepol|openssl_|netbase|libgdbm)`)

// releaseImage is the operator's image in its own manifest.
var releaseImage = regexp.MustCompile(`[a-z.]+/cloudnative-pg/cloudnative-pg:[0-9.]+`)

// PostgresFiles makes, unless the cache has it, the root filesystem of a PostgreSQL of the major version.
func (l Layout) PostgresFiles(ctx context.Context, progress *Progress, major string) (string, error) {
	suite, known := suites[major]
	if !known {
		return "", fmt.Errorf("PostgreSQL %s: there are 15, 17 and 18", major)
	}
	root := filepath.Join(l.Cache, "postgresql-"+major)
	if _, err := os.Stat(filepath.Join(root, "usr/lib/postgresql", major, "bin/postgres")); err == nil {
		return root, nil
	}
	progress.Say("unpack PostgreSQL %s from Debian %s", major, suite)
	work, err := os.MkdirTemp(l.Cache, "packages-")
	if err != nil {
		return "", fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	archives, err := download(ctx, work, suite, "postgresql-"+major, "postgresql-client-"+major, "base-files", "bash", "dash", "coreutils", "tzdata")
	if err != nil {
		return "", fmt.Errorf("download PostgreSQL %s: %w", major, err)
	}
	part := filepath.Join(work, "root")
	if err := unpack(ctx, archives, part, major); err != nil {
		return "", fmt.Errorf("unpack PostgreSQL %s: %w", major, err)
	}
	if err := os.Rename(part, root); err != nil {
		return "", fmt.Errorf("keep PostgreSQL %s: %w", major, err)
	}
	return root, nil
}

// source is where this machine's apt gets Debian from; the files are read when needed, so that no host is written down here.
func source() (string, error) {
	for _, file := range []string{"/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"} {
		content, err := os.Open(file)
		if err != nil {
			continue
		}
		uri := sourceIn(content)
		_ = content.Close()
		if uri != "" {
			return uri, nil
		}
	}
	return "", errors.New("no source of Debian packages in /etc/apt")
}

// sourceIn finds the first source in a file of either format of apt.
func sourceIn(file io.Reader) string {
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) >= 2 && fields[0] == "URIs:":
			return fields[1]
		case len(fields) >= 3 && fields[0] == "deb":
			for _, field := range fields[1:] {
				if strings.Contains(field, "://") {
					return field
				}
			}
		}
	}
	return ""
}

// download gets packages and everything that they need with a state of apt of its own, in which nothing is installed.
func download(ctx context.Context, work, suite string, names ...string) ([]string, error) {
	uri, err := source()
	if err != nil {
		return nil, err
	}
	for _, directory := range []string{"state/lists/partial", "cache/archives/partial", "etc/preferences.d", "etc/apt.conf.d", "etc/sources.list.d"} {
		if err := os.MkdirAll(filepath.Join(work, directory), 0o755); err != nil {
			return nil, fmt.Errorf("make apt's directories: %w", err)
		}
	}
	files := map[string]string{
		"state/status":     "",
		"etc/sources.list": fmt.Sprintf("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n", uri, suite),
		"apt.conf": strings.ReplaceAll(`Dir::State "@/state"; Dir::State::status "@/state/status"; Dir::Cache "@/cache"; Dir::Etc::sourcelist "@/etc/sources.list";
Dir::Etc::sourceparts "@/etc/sources.list.d"; Dir::Etc::preferencesparts "@/etc/preferences.d";
APT::Install-Recommends "false"; APT::Architecture "amd64"; APT::Sandbox::User "root";
`, "@", work),
	}
	for name, content := range files {
		if err := writeFile(filepath.Join(work, name), content); err != nil {
			return nil, err
		}
	}
	for _, arguments := range [][]string{
		{"update"},
		append([]string{"install", "-y", "--no-install-recommends", "--download-only"}, names...),
	} {
		command := exec.CommandContext(ctx, "apt-get", arguments...)
		command.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(work, "apt.conf"))
		if out, err := command.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("apt-get %s: %w: %s", arguments[0], err, out)
		}
	}
	return filepath.Glob(filepath.Join(work, "cache/archives/*.deb"))
}

// unpack makes a root filesystem of packages without running anything of theirs.
func unpack(ctx context.Context, archives []string, root, major string) error {
	for _, directory := range []string{"bin", "sbin", "lib", "lib64"} { // merged, as Debian has it
		if err := os.MkdirAll(filepath.Join(root, "usr", directory), 0o755); err != nil {
			return fmt.Errorf("make /usr/%s: %w", directory, err)
		}
		if err := os.Symlink("usr/"+directory, filepath.Join(root, directory)); err != nil {
			return fmt.Errorf("link /%s: %w", directory, err)
		}
	}
	const extract = `dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" --keep-directory-symlink --no-same-owner ` +
		`--exclude='./usr/share/doc*' --exclude='./usr/share/man*' --exclude='./usr/share/locale*' --exclude='./usr/share/lintian*' ` +
		`--exclude='*/bitcode*' --exclude='*llvmjit*' --exclude='./usr/share/info*'`
	for _, archive := range archives {
		if unneeded.MatchString(filepath.Base(archive)) {
			continue
		}
		if _, err := do(ctx, "bash", "-o", "pipefail", "-c", extract, "unpack", archive, root); err != nil {
			return err
		}
	}
	return finish(ctx, root, major)
}

// finish adds what the packages' scripts would have, with PostgreSQL's user as CloudNativePG wants it: 26.
func finish(ctx context.Context, root, major string) error {
	const script = `set -e; cd "$1"
mkdir -p etc tmp run var/lib/postgresql proc sys dev controller home; chmod 1777 tmp
rm -rf var/run; ln -s /run var/run; mkdir -p run/postgresql
printf '%s\n' 'root:x:0:0:root:/root:/bin/bash' 'postgres:x:26:26:PostgreSQL:/var/lib/postgresql:/bin/bash' 'nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin' > etc/passwd
printf '%s\n' 'root:x:0:' 'postgres:x:26:' 'nogroup:x:65534:' > etc/group
echo 'hosts: files dns' > etc/nsswitch.conf
for b in usr/lib/postgresql/$2/bin/*; do ln -sf ../lib/postgresql/$2/bin/$(basename $b) usr/bin/$(basename $b); done
chown -R 26:26 var/lib/postgresql run/postgresql
ldconfig -r .`
	_, err := do(ctx, "bash", "-c", script, "finish", root, major)
	return err
}

// version is what a PostgreSQL says of itself.
var version = regexp.MustCompile(`\(PostgreSQL\) ([0-9]+\.[0-9]+)`)

// PostgresImage makes, unless the cache has it, the image of a PostgreSQL of the major version, and returns its archive and
// its name, whose tag is the version, since the operator reads the major version there.
func (l Layout) PostgresImage(ctx context.Context, progress *Progress, major string) (archive, name string, err error) {
	root, err := l.PostgresFiles(ctx, progress, major)
	if err != nil {
		return "", "", err
	}
	said, err := do(ctx, "chroot", root, "/usr/bin/postgres", "--version")
	if err != nil {
		return "", "", err
	}
	found := version.FindStringSubmatch(said)
	if found == nil {
		return "", "", fmt.Errorf("PostgreSQL says that its version is %q", said)
	}
	name, archive = "localhost/postgresql:"+found[1], filepath.Join(l.Cache, "postgresql-"+found[1]+".tar")
	if _, err := os.Stat(archive); err == nil {
		return archive, name, nil
	}
	progress.Say("write the image of PostgreSQL %s", found[1])
	config := images.Config{
		User: "26", Cmd: []string{"postgres"},
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"},
	}
	return archive, name, images.Write(archive, name, root, config)
}
