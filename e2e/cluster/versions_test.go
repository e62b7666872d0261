package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestVersionsThatThereAre(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule     string
		versions Versions
		bad      []string
	}{
		{"the usual ones are there", Usual(), nil},
		{"others may be chosen", Versions{"1.37.2", "1.29.2", "15"}, nil},
		{"every one that there is not is named at once", Versions{"1.2.3", "1.29.2", "9"}, []string{`Kubernetes "1.2.3"`, `PostgreSQL "9"`}},
		{"none is no version", Versions{Kubernetes: "1.34.4", Postgres: "17"}, []string{`CloudNativePG "": there are 1.30.1`}},
	} {
		err := row.versions.Check()
		if (err != nil) != (len(row.bad) != 0) {
			t.Errorf("%s: %v", row.rule, err)
		}
		for _, text := range row.bad {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v does not say %s", row.rule, err, text)
			}
		}
	}
}

// Every version has a module that pins it.
func TestModulesPinTheVersions(t *testing.T) {
	t.Parallel()
	l := Layout{Source: ".."}
	for _, row := range []struct {
		name, path string
		known      []string
	}{
		{"kubernetes", "k8s.io/kubernetes", kubernetesVersions},
		{"operator", operatorPath, operatorVersions},
	} {
		for _, version := range row.known {
			m := l.moduleOf(row.name, version, row.known)
			content, err := os.ReadFile(filepath.Join(m.directory, m.file))
			if err != nil {
				t.Error(err)
				continue
			}
			if !strings.Contains(string(content), "\t"+row.path+" v"+version) {
				t.Errorf("%s does not pin %s v%s", m.file, row.path, version)
			}
		}
	}
	for _, major := range postgresVersions {
		if suites[major] == "" {
			t.Errorf("no suite has PostgreSQL %s", major)
		}
	}
}

// What another version is made from does not make the usual one anew.
func TestOnlyTheOwnFilesDecide(t *testing.T) {
	t.Parallel()
	l := Layout{Source: t.TempDir()}
	known := []string{"2.0", "1.0"}
	for _, name := range []string{"go.mod", "go.sum", "1.0.mod", "1.0.sum", "main.go"} {
		if err := writeFile(filepath.Join(l.Source, "build", "operator", name), name); err != nil {
			t.Fatal(err)
		}
	}
	for version, want := range map[string][]string{"2.0": {"go.mod", "go.sum", "main.go"}, "1.0": {"1.0.mod", "1.0.sum", "main.go"}} {
		var got []string
		for _, source := range must(l.moduleOf("operator", version, known).sources())(t) {
			got = append(got, filepath.Base(source))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", version, diff)
		}
	}
}

// The combinations that `make e2e-matrix` tries are of versions that there are, and have every pair of them.
func TestMatrix_triesEveryPair(t *testing.T) {
	t.Parallel()
	makefile := string(must(os.ReadFile("../../Makefile"))(t))
	_, list, _ := strings.Cut(makefile, "\nMATRIX ?=")
	list, _, _ = strings.Cut(list, "\n")
	tried := map[[2]string]bool{}
	for _, combination := range strings.Fields(list) {
		var v Versions
		if parts := strings.Split(combination, "/"); len(parts) == 3 {
			v = Versions{Operator: parts[0], Kubernetes: parts[1], Postgres: parts[2]}
		}
		if err := v.Check(); err != nil {
			t.Errorf("%s: %v", combination, err)
		}
		tried[[2]string{v.Operator, v.Kubernetes}], tried[[2]string{v.Operator, v.Postgres}], tried[[2]string{v.Kubernetes, v.Postgres}] = true, true, true
	}
	for _, sets := range [][2][]string{{operatorVersions, kubernetesVersions}, {operatorVersions, postgresVersions}, {kubernetesVersions, postgresVersions}} {
		for _, one := range sets[0] {
			for _, other := range sets[1] {
				if !tried[[2]string{one, other}] {
					t.Errorf("no combination has %s with %s", one, other)
				}
			}
		}
	}
}
