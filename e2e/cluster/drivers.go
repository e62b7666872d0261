package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/cnpg-i/scale-to-zero/e2e/images"
)

// driversSuite is the Debian suite of the clients' image.
const driversSuite = "trixie"

// drivers are the packages of the clients with which people reach PostgreSQL, beside psql, and of what looks after it from afar.
var drivers = []string{
	"python3-psycopg", "python3-psycopg-c", "python3-psycopg-pool", "python3-sqlalchemy", "python3-django", "python3-asyncpg",
	"ruby-activerecord", "ruby-pg", "nodejs", "node-pg", "default-jdk-headless", "libpostgresql-jdbc-java", "libhikaricp-java",
	"postgresql-client-17", "haproxy",
	"base-files", "bash", "dash", "coreutils", "tzdata",
}

// javaSuites are the suites whose versions of pgjdbc are there beside the image's own.
var javaSuites = []string{"bookworm", "forky"}

// javaDriver are the packages of pgjdbc and of what it needs itself.
var javaDriver = regexp.MustCompile(`^(libpostgresql-jdbc-java|libscram-java|libongres-.*-java|libstringprep-java|libsaslprep-java)_`)

// DriversImage makes, unless the cache has it, an image of clients in other languages than C: of Python, Ruby, JavaScript
// and Java, pgjdbc also in the versions of other suites, under /opt. It returns its archive and its name.
func (l Layout) DriversImage(ctx context.Context, progress *Progress) (archive, name string, err error) {
	name = "localhost/drivers:" + driversSuite
	root, err := l.keyed("drivers", nil, fmt.Sprint(driversSuite, drivers, javaSuites, javaDriver, unneeded, leftOut, rootFiles, rootDirectories, devices))
	if err != nil {
		return "", "", err
	}
	err = l.fill(progress, root, "drivers from Debian "+driversSuite, func(work, part string) error {
		archives, err := download(ctx, filepath.Join(work, driversSuite), driversSuite, withNeeded(drivers...)...)
		if err != nil {
			return err
		}
		if err := unpack(ctx, archives, part); err != nil {
			return err
		}
		for _, suite := range javaSuites {
			if err := addJavaDriver(ctx, work, part, suite); err != nil {
				return err
			}
		}
		if err := furnish(part); err != nil {
			return err
		}
		_, err = do(ctx, "ldconfig", "-r", part)
		return err
	})
	if err != nil {
		return "", "", err
	}
	archive = root + ".tar"
	config := images.Config{
		User: "65534", Cmd: []string{"sleep", "infinity"},
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/jvm/default-java/bin", "LANG=C.UTF-8"},
	}
	return archive, name, writeImage(progress, archive, name, config, images.Directory(root))
}

// addJavaDriver puts another suite's pgjdbc under /opt.
func addJavaDriver(ctx context.Context, work, root, suite string) error {
	archives, err := download(ctx, filepath.Join(work, suite), suite, withNeeded("libpostgresql-jdbc-java")...)
	if err != nil {
		return err
	}
	target := filepath.Join(root, "opt", suite)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("make /opt/%s: %w", suite, err)
	}
	for _, archive := range archives {
		if !javaDriver.MatchString(filepath.Base(archive)) {
			continue
		}
		if _, err := do(ctx, "dpkg-deb", "-x", archive, target); err != nil {
			return err
		}
	}
	return nil
}
