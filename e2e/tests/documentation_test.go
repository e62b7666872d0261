package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// reader is a person who types what the documentation says, in their own namespace.
type reader struct {
	*story
	environment []string
}

// typed runs lines in a shell, in the repository, and returns their output.
func (r *reader) typed(lines ...string) string {
	r.Helper()
	shell := exec.CommandContext(r.ctx, "bash", "-euo", "pipefail", "-c", strings.Join(lines, "\n"))
	shell.Dir, shell.Env = "../..", r.environment
	out, err := shell.CombinedOutput()
	if err != nil {
		r.Fatalf("%s: %v\n%s", strings.Join(lines, "\n"), err, out)
	}
	return string(out)
}

// reads prepares a shell with kubectl, in the test's namespace.
func (s *story) reads() *reader {
	s.Helper()
	directory := s.TempDir()
	r := &reader{s, append(os.Environ(), "PATH="+directory+":"+os.Getenv("PATH"))}
	if _, err := exec.LookPath("kubectl"); err != nil {
		script := "#!/bin/sh\nexec go -C \"$E2E\" run ./cmd/cluster kubectl -- \"$@\"\n"
		s.must(os.WriteFile(filepath.Join(directory, "kubectl"), []byte(script), 0o700)) // it is a program
		e2e, err := filepath.Abs("..")
		s.must(err)
		r.environment = append(r.environment, "E2E="+e2e)
	}
	own := filepath.Join(directory, "kubeconfig")
	s.must(os.WriteFile(own, []byte(r.typed("kubectl config view --raw --flatten")), 0o600))
	r.environment = append(r.environment, "KUBECONFIG="+own)
	r.typed("kubectl config set-context --current --namespace=" + s.namespace)
	return r
}

// The README's quick start works, from the example on. The installation is skipped, since the plugin is already there.
func TestQuickStart(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 2 {
		t.Fatalf("the README has %d blocks of commands, want one that installs and one that connects", len(blocks))
	}
	const example = "kubectl apply -f manifests/examples/cluster-minimal.yaml\n"
	_, then, found := strings.Cut(blocks[0][1], example)
	if !found {
		t.Fatalf("the README does not say %s", example)
	}
	r := begin(t).reads()
	image := `{"spec":{"imageName":"` + os.Getenv("POSTGRES_IMAGE") + `"}}` // the image on the node
	r.typed("kubectl patch --local -f manifests/examples/cluster-minimal.yaml --type=merge -p '"+image+"' -o yaml | kubectl apply -f -", then)

	c := &cnpgv1.Cluster{}
	c.Namespace, c.Name = r.namespace, "cluster-minimal"
	_, err = kube.AwaitCluster(r.ctx, c, "hibernated", time.Minute+toSleep+toHibernate, scenario.Hibernated)
	r.must(err)
	out := r.typed(blocks[1][1])
	for _, reason := range []string{"Hibernated", "Woken"} { // the plugin may write the Events after the client's answer
		_, err := kube.AwaitEvent(r.ctx, c, reason, toSettle)
		r.must(err)
	}
	out += r.typed("kubectl describe cluster cluster-minimal")
	for _, want := range []string{"(1 row)", "Hibernated", "Woken"} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q in what is printed:\n%s", want, out)
		}
	}
}

// does types what a page says, with the name of this cluster. Commands for all namespaces run in the reader's only.
func (r *reader) does(program string, c *cnpgv1.Cluster, documented string) {
	r.Helper()
	shell := "kubectl() { if [ \"$1\" = scale_to_zero ]; then shift; " + program + " \"$@\"; else command kubectl \"$@\"; fi; }\n"
	typed := strings.NewReplacer(
		"service NAME", "service "+c.Name+"-rw", "NAME", c.Name, "cluster-minimal", c.Name, "wake shop -n shop-42", "wake "+c.Name,
		"cluster shop -n shop-42", "cluster "+c.Name, " -A ", " ", " -A\n", "\n",
	).Replace(documented)
	r.Logf("%s\n%s", typed, r.typed(shell+typed))
}

// The blocks of commands that docs/contributing/commands.md says are run here work as they are written. Those that change annotations come
// last, because some keep the cluster awake.
func TestDocumentedCommands(t *testing.T) {
	whole(t)
	t.Parallel()
	const list = "../../docs/contributing/commands.md"
	page, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, row := range regexp.MustCompile("(?m)^\\| \\[.*\\]\\((.*)\\) \\| `(.*)` \\| `TestDocumentedCommands` \\|$").FindAllStringSubmatch(string(page), -1) {
		body, err := os.ReadFile(filepath.Join(filepath.Dir(list), row[1]))
		if err != nil {
			t.Fatal(err)
		}
		begins := regexp.QuoteMeta(strings.ReplaceAll(row[2], `\|`, "|"))
		block := regexp.MustCompile(`(?m)^ {4,}` + begins + `.*\n(?: {4,}\S.*\n)*`).FindString(string(body))
		if block == "" {
			t.Fatalf("%s has no block that begins with %q", row[1], row[2])
		}
		blocks = append(blocks, block)
	}
	if rows := strings.Count(string(page), "| `TestDocumentedCommands` |"); len(blocks) == 0 || len(blocks) != rows {
		t.Fatalf("%s has %d rows, of which %d can be read", list, rows, len(blocks))
	}
	slices.SortStableFunc(blocks, func(a, b string) int { return strings.Count(a, " annotate ") - strings.Count(b, " annotate ") })
	s := begin(t)
	r, program := s.reads(), s.command()
	c := kube.NewCluster(s.namespace, "documented", 1, never)
	s.running(c)
	s.must(kube.Create(s.ctx, scenario.NewScheduledBackup(c, c.Name, "0 0 0 1 1 *")))
	for _, block := range blocks {
		r.does(program, c, block)
	}
}
