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

// drivers are the packages of PostgreSQL clients in several languages, of psql, and of HAProxy, whose health checks the tests use.
var drivers = []string{
	"python3-psycopg", "python3-psycopg-c", "python3-psycopg-pool", "python3-sqlalchemy", "python3-django", "python3-asyncpg",
	"ruby-activerecord", "ruby-pg", "nodejs", "node-pg", "default-jdk-headless", "libpostgresql-jdbc-java", "libhikaricp-java",
	"postgresql-client-17", "haproxy",
	"base-files", "bash", "dash", "coreutils", "tzdata",
}

// javaSuites are the suites whose versions of pgjdbc are there beside the image's own.
var javaSuites = []string{"bookworm", "forky"}

// nodePackages are the clients that only npm has. Prisma's client is generated once, and then needs its adapter for node-postgres.
const nodePackages = `{
	"private": true,
	"dependencies": {"postgres": "3.4.9", "@prisma/adapter-pg": "7.10.0", "@prisma/client-runtime-utils": "7.10.0"},
	"devDependencies": {"@prisma/client": "7.10.0", "prisma": "7.10.0"}
}
`

const prismaSchema = `generator client {
	provider = "prisma-client-js"
	output   = "./prisma"
}
datasource db {
	provider = "postgresql"
}
`

// javaDriver are the packages of pgjdbc and of what it needs itself.
var javaDriver = regexp.MustCompile(`^(libpostgresql-jdbc-java|libscram-java|libongres-.*-java|libstringprep-java|libsaslprep-java)_`)

// DriversImage makes, unless the cache has it, an image of clients in other languages than C: of Python, Ruby, JavaScript
// and Java, pgjdbc also in the versions of other suites and what only npm has, under /opt. It returns its archive and its name.
func (l Layout) DriversImage(ctx context.Context, progress *Progress) (archive, name string, err error) {
	name = "localhost/drivers:" + driversSuite
	root, err := l.keyed("drivers", nil, fmt.Sprint(driversSuite, drivers, javaSuites, javaDriver, nodePackages, prismaSchema, unneeded, leftOut, rootFiles, rootDirectories, devices))
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
		if _, err := do(ctx, "ldconfig", "-r", part); err != nil {
			return err
		}
		return addNodePackages(ctx, progress, part)
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

// addNodePackages puts them and Prisma's generated client under /opt/node.
func addNodePackages(ctx context.Context, progress *Progress, root string) error {
	if err := installPackages(ctx, progress, map[string]string{"npm": "npm"}); err != nil {
		return err
	}
	target := filepath.Join(root, "opt", "node")
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("make /opt/node: %w", err)
	}
	for name, content := range map[string]string{"package.json": nodePackages, "schema.prisma": prismaSchema} {
		if err := writeFile(filepath.Join(target, name), content); err != nil {
			return err
		}
	}
	for _, command := range [][]string{
		{"npm", "--prefix", target, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"},
		// The generator does not run the engine, but downloads it unless it is told where one is.
		{"chroot", root, "env", "-C", "/opt/node", "PRISMA_SCHEMA_ENGINE_BINARY=/bin/true", "node", "node_modules/prisma/build/index.js", "generate", "--schema", "schema.prisma"},
		{"npm", "--prefix", target, "prune", "--omit=dev", "--ignore-scripts", "--no-package-lock"},
	} {
		if _, err := do(ctx, command[0], command[1:]...); err != nil {
			return err
		}
	}
	return nil
}
