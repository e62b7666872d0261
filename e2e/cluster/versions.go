package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Versions are those of what a cluster is made of.
type Versions struct {
	// Kubernetes and Operator are releases such as 1.34.4; Postgres is a major version.
	Kubernetes, Operator, Postgres string
}

// What there is, the usual one first. The modules under build/ pin the releases: the usual one's go.mod, and a file VERSION.mod
// beside it for every other.
var (
	kubernetesVersions = []string{"1.34.4", "1.37.2"}
	operatorVersions   = []string{"1.30.1", "1.29.2"}
	postgresVersions   = []string{"17", "15", "18"}
)

// Usual are the versions of a cluster for which nobody chose any.
func Usual() Versions {
	return Versions{Kubernetes: kubernetesVersions[0], Operator: operatorVersions[0], Postgres: postgresVersions[0]}
}

// Check returns an error that names, for each unknown version, the known ones.
func (v Versions) Check() error {
	var problems []error
	for _, chosen := range []struct {
		what, version string
		known         []string
	}{
		{"Kubernetes", v.Kubernetes, kubernetesVersions},
		{"CloudNativePG", v.Operator, operatorVersions},
		{"PostgreSQL", v.Postgres, postgresVersions},
	} {
		if !slices.Contains(chosen.known, chosen.version) {
			problems = append(problems, fmt.Errorf("%s %q: there are %s", chosen.what, chosen.version, strings.Join(chosen.known, ", ")))
		}
	}
	return errors.Join(problems...)
}

// module is a Go module under build/ that pins what a program is made of.
type module struct {
	// directory is that of the module, file the name of its go.mod.
	directory, file string
	// edits are made in a copy of the operator's module.
	edits []edit
}

// operatorPath is the path of the operator's module.
const operatorPath = "github.com/cloudnative-pg/cloudnative-pg"

// module returns the module of that name with its usual go.mod.
func (l Layout) module(name string) module {
	return module{directory: filepath.Join(l.Source, "build", name), file: "go.mod"}
}

// moduleOf is the module that pins a release: known are those that there are, the usual one first.
func (l Layout) moduleOf(name, version string, known []string) module {
	m := l.module(name)
	if version != known[0] {
		m.file = version + ".mod"
	}
	if name == "operator" {
		m.edits = edits[version]
	}
	return m
}

// directoryOf is where the files of another module are that this one requires.
func (m module) directoryOf(ctx context.Context, path string) (string, error) {
	command := exec.CommandContext(ctx, "go", "mod", "download", "-modfile="+m.file, "-json", path)
	command.Dir, command.Env = m.directory, append(os.Environ(), "GOFLAGS=")
	var downloaded struct{ Dir string }
	out, err := command.Output()
	if err == nil {
		err = json.Unmarshal(out, &downloaded)
	}
	if err != nil {
		return "", fmt.Errorf("download the module %s: %w", path, err)
	}
	return downloaded.Dir, nil
}

// sources are the files that decide what is built.
func (m module) sources() ([]string, error) {
	programs, err := filepath.Glob(filepath.Join(m.directory, "*.go"))
	if err != nil {
		return nil, fmt.Errorf("list the sources under %s: %w", m.directory, err)
	}
	file := filepath.Join(m.directory, m.file)
	sources := append(programs, file, strings.TrimSuffix(file, ".mod")+".sum")
	slices.Sort(sources)
	return sources, nil
}
