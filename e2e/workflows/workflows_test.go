// Package workflows checks that what the workflows of CI and of the release run and name exists in the repository.
package workflows

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	root    = "../.."
	release = root + "/.github/workflows/release.yaml"
)

// workflow is the part of one that names what is elsewhere.
type workflow struct {
	Jobs map[string]struct {
		Uses        string
		With        map[string]any
		Needs       any // a name, or a list of names
		Permissions map[string]string
		Strategy    struct{ Matrix map[string]any }
		Steps       []struct {
			Uses, Run string
			With, Env map[string]any
		}
	}
}

// value is an expression that stands for a value of a job's matrix.
var value = regexp.MustCompile(`\$\{\{ *matrix\.([a-z]+) *\}\}`)

// read reads a workflow.
func read(t *testing.T, path string) (w workflow) {
	t.Helper()
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(body, &w); err != nil {
		t.Fatal(err)
	}
	return w
}

// after reports whether a job starts only when another has succeeded.
func (w workflow) after(job, other string) bool {
	names, _ := w.Jobs[job].Needs.([]any)
	if name, ok := w.Jobs[job].Needs.(string); ok {
		names = []any{name}
	}
	return slices.ContainsFunc(names, func(name any) bool { return name == other || w.after(fmt.Sprint(name), other) })
}

// named are the texts that a workflow runs, and those that name files, with the values of their matrices in place.
func named(t *testing.T, path string) (runs, files, actions []string) {
	t.Helper()
	for _, job := range read(t, path).Jobs {
		if strings.HasPrefix(job.Uses, "./") {
			files = append(files, job.Uses)
		}
		values := values(job.Strategy.Matrix)
		for _, step := range job.Steps {
			runs = append(runs, expand(step.Run, values)...)
			if step.Uses != "" {
				actions = append(actions, step.Uses)
			}
			for _, key := range []string{"file", "go-version-file"} {
				if name, ok := step.With[key].(string); ok {
					files = append(files, expand(name, values)...)
				}
			}
		}
	}
	return runs, files, actions
}

// values are those of a matrix, by name.
func values(matrix map[string]any) map[string][]string {
	found := map[string][]string{}
	for key, list := range matrix {
		entries, _ := list.([]any)
		for _, entry := range entries {
			switch entry := entry.(type) {
			case map[string]any:
				if key != "include" {
					continue
				}
				for name, text := range entry {
					found[name] = append(found[name], fmt.Sprint(text))
				}
			default:
				found[key] = append(found[key], fmt.Sprint(entry))
			}
		}
	}
	return found
}

// expand puts every value of a matrix in place. One whose values are an expression of GitHub's stays.
func expand(text string, values map[string][]string) []string {
	match := value.FindStringSubmatch(text)
	if match == nil || len(values[match[1]]) == 0 {
		return []string{text}
	}
	var texts []string
	for _, v := range values[match[1]] {
		texts = append(texts, expand(strings.ReplaceAll(text, match[0], v), values)...)
	}
	return texts
}

// every calls the function for each workflow.
func every(t *testing.T, check func(t *testing.T, runs, files, actions []string)) {
	t.Helper()
	paths, err := filepath.Glob(root + "/.github/workflows/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("there are no workflows: %v", err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			runs, files, actions := named(t, path)
			check(t, runs, files, actions)
		})
	}
}

func TestWorkflows_runTargetsThatAreThere(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile(root + "/Makefile")
	if err != nil {
		t.Fatal(err)
	}
	target, goal := regexp.MustCompile(`(?m)^([a-z0-9 -]+):`), regexp.MustCompile(`\bmake ([a-z][a-z0-9-]*)`)
	var targets []string
	for _, match := range target.FindAllStringSubmatch(string(makefile), -1) {
		targets = append(targets, strings.Fields(match[1])...)
	}
	every(t, func(t *testing.T, runs, _, _ []string) {
		found := 0
		for _, run := range runs {
			for _, match := range goal.FindAllStringSubmatch(run, -1) {
				found++
				if !slices.Contains(targets, match[1]) {
					t.Errorf("%q: there is no target %s", run, match[1])
				}
			}
		}
		if found == 0 {
			t.Error("it runs no target")
		}
	})
}

func TestWorkflows_nameFilesThatAreThere(t *testing.T) {
	t.Parallel()
	script := regexp.MustCompile(`(?:^|[\s"'])((?:\./)?(?:e2e|manifests|plugin|sidecar|sql|\.github|\.ci)/[\w./-]+)`)
	every(t, func(t *testing.T, runs, files, _ []string) {
		for _, run := range runs {
			for _, match := range script.FindAllStringSubmatch(run, -1) {
				files = append(files, match[1])
			}
		}
		for _, name := range files {
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestWorkflows_pinActionsByCommit(t *testing.T) {
	t.Parallel()
	pinned := regexp.MustCompile(`^[\w.-]+(/[\w.-]+)+@[0-9a-f]{40}$`)
	every(t, func(t *testing.T, _, _, actions []string) {
		for _, action := range actions {
			if !pinned.MatchString(action) {
				t.Errorf("%s is not pinned by the hash of a commit", action)
			}
		}
	})
}

// A release pushes what the tests have run. Each image has an SBOM, and so has every archive: the release has each file that make
// archives writes.
func TestRelease_shipsWhatWasTestedWithItsSBOM(t *testing.T) {
	t.Parallel()
	w := read(t, release)
	if tests := w.Jobs["tests"]; tests.Uses != "./.github/workflows/ci.yaml" || tests.With["every"] != true || tests.With["version"] != "${{ github.ref_name }}" {
		t.Errorf("the tests run %s with %v", tests.Uses, tests.With)
	}
	artifact, archives := "", 0
	for _, job := range w.Jobs {
		for _, step := range job.Steps {
			if step.With["push"] == true {
				t.Errorf("%s builds what it pushes, which no test has run", step.Uses)
			}
			if pattern, ok := step.With["pattern"].(string); ok {
				artifact = pattern
			}
			if strings.Contains(step.Run, "make push ") && artifact != "image-*" {
				t.Errorf("what is pushed is the artifact %q", artifact)
			}
			if strings.Contains(step.Run, " build/archives/* build/release/") {
				archives++
			}
		}
	}
	images := 0
	for _, step := range read(t, root+"/.github/workflows/kind.yaml").Jobs["images"].Steps {
		if outputs, _ := step.With["outputs"].(string); strings.HasPrefix(outputs, "type=oci,") {
			images++
			if step.With["sbom"] != true || step.With["provenance"] != "mode=max" {
				t.Errorf("an image is shipped with the SBOM %v and the provenance %v", step.With["sbom"], step.With["provenance"])
			}
		}
	}
	if artifact == "" || images != 1 || archives != 1 {
		t.Errorf("images are pushed from the artifact %q and built by %d steps, and archives are shipped by %d, want one each", artifact, images, archives)
	}
}

// A tag without notes, or that is no version, must leave no images and no chart behind.
func TestRelease_checksBeforeItPushes(t *testing.T) {
	t.Parallel()
	w := read(t, release)
	var checks, pushes []string
	for _, step := range w.Jobs["check"].Steps {
		checks = append(checks, step.Run)
	}
	for _, target := range []string{"notes", "manifest", "chart", "archives"} {
		if !strings.Contains(strings.Join(checks, "\n"), "make "+target+` TAG="$TAG"`) {
			t.Errorf("the job check does not make the %s of the tag", target)
		}
	}
	for name, job := range w.Jobs {
		if !slices.Contains(slices.Collect(maps.Values(job.Permissions)), "write") {
			continue
		}
		if pushes = append(pushes, name); !w.after(name, "check") || !w.after(name, "tests") {
			t.Errorf("the job %s may write although check or tests has failed", name)
		}
	}
	if slices.Sort(pushes); !slices.Equal(pushes, []string{"chart", "images", "release"}) || !w.after("release", "chart") {
		t.Errorf("the jobs %q may write, want chart, images and release, with release after chart", pushes)
	}
	published := w.Jobs["release"].Steps[len(w.Jobs["release"].Steps)-1]
	if !strings.HasSuffix(published.Run, "$PRERELEASE") || published.Env["PRERELEASE"] != "${{ contains(github.ref_name, '-') && '--prerelease' || '' }}" {
		t.Errorf("a candidate is not marked as a prerelease: %s, %v", published.Run, published.Env)
	}
}

// The inputs that a fuzz target has found are replayed only as long as the target has their folder's name. Each target has some.
func TestFuzz_everyTargetHasItsInputs(t *testing.T) {
	t.Parallel()
	declared := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(f \*testing\.F\)`)
	var targets, folders []string
	if err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == root+"/.git" || path == root+"/build":
			return fs.SkipDir
		case entry.IsDir() && filepath.Base(filepath.Dir(path)) == "fuzz":
			folders = append(folders, filepath.Join(path, "../../..", entry.Name()))
		case strings.HasSuffix(path, "_test.go"):
			body, err := os.ReadFile(path)
			for _, match := range declared.FindAllStringSubmatch(string(body), -1) {
				targets = append(targets, filepath.Join(filepath.Dir(path), match[1]))
			}
			return err
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(targets)
	slices.Sort(folders)
	if len(targets) == 0 || !slices.Equal(targets, folders) {
		t.Errorf("the targets are %q, and there are inputs of %q", targets, folders)
	}
}

// The files that the Dockerfiles copy exist, and .dockerignore does not exclude them.
func TestDockerfiles_copyWhatIsThere(t *testing.T) {
	t.Parallel()
	ignored, err := os.ReadFile(root + "/.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	copied := regexp.MustCompile(`(?m)^COPY ([^-].*) \S+$`)
	for _, name := range []string{"Dockerfile.plugin", "Dockerfile.sidecar"} {
		body, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		matches := copied.FindAllStringSubmatch(string(body), -1)
		if len(matches) == 0 {
			t.Errorf("%s copies nothing", name)
		}
		for _, match := range matches {
			for source := range strings.FieldsSeq(match[1]) {
				if _, err := os.Stat(filepath.Join(root, source)); err != nil {
					t.Error(err)
				}
				if slices.Contains(strings.Fields(string(ignored)), source+"/") {
					t.Errorf("%s copies %s, which .dockerignore keeps away", name, source)
				}
			}
		}
	}
}

// Renovate finds the versions that no manager of its own knows: those of the Makefile, and of CI's nodes.
func TestRenovate_findsWhatIsPinnedByHand(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile(root + "/.github/renovate.json")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		CustomManagers []struct{ ManagerFilePatterns, MatchStrings []string }
	}
	if err := json.Unmarshal(body, &config); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, name := range []string{"Makefile", "Dockerfile.plugin", "Dockerfile.sidecar", ".github/workflows/kind.yaml"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, manager := range config.CustomManagers {
			if !slices.ContainsFunc(manager.ManagerFilePatterns, func(pattern string) bool {
				return regexp.MustCompile(strings.Trim(pattern, "/")).MatchString(name)
			}) {
				continue
			}
			for _, pattern := range manager.MatchStrings {
				for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
					found[filepath.Base(name)+" "+match[1]] = true
				}
			}
		}
	}
	for _, want := range []string{
		"Makefile github.com/golangci/golangci-lint/v2", "Makefile golang.org/x/vuln", "Makefile github.com/rhysd/actionlint", "Makefile github.com/google/go-licenses",
		"Makefile sigs.k8s.io/kind", "Makefile kindest/node", "Dockerfile.plugin github.com/google/go-licenses", "Dockerfile.sidecar github.com/google/go-licenses",
		"kind.yaml kindest/node", "Makefile github.com/google/go-containerregistry", "Makefile github.com/goreleaser/goreleaser/v2", "Makefile github.com/CycloneDX/cyclonedx-gomod",
	} {
		if !found[want] {
			t.Errorf("not found: %s; found are %v", want, slices.Sorted(maps.Keys(found)))
		}
	}
}
