package tests

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// The kubectl plugin on a real cluster: it asks the sidecars through the API server, and never
// turns hibernation on itself.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	program := buildStatic(t, "../..", "./plugin/kubectl")
	run := func(arguments ...string) string {
		s.Helper()
		command := exec.CommandContext(s.ctx, program, append(arguments, "-n", s.namespace)...)
		out, err := command.CombinedOutput()
		if err != nil {
			s.Fatalf("%s: %v: %s", strings.Join(arguments, " "), err, out)
		}
		return string(out)
	}
	state := func() string {
		s.Helper()
		var answer struct {
			Clusters []struct{ Cluster, State string } `json:"clusters"`
		}
		s.must(json.Unmarshal([]byte(run("status", "-o", "json")), &answer))
		if len(answer.Clusters) != 1 || answer.Clusters[0].Cluster != c.Name {
			s.Fatalf("the clusters are %v", answer.Clusters)
		}
		return answer.Clusters[0].State
	}
	up := time.Now()
	session := s.open(c, "rw")
	s.annotate(c, scenario.InactivityMinutes, "1")
	if got := state(); got != "awake" {
		t.Errorf("in use it is %q", got)
	}
	s.awaitReport(c, c.Status.CurrentPrimary, "that it is in use", func(r report) bool { return r.Active }) // a sample after the session began
	if text := run("explain", c.Name); !strings.Contains(text, "(active)") {
		t.Errorf("explain does not say that it is in use:\n%s", text)
	}
	if got := run("status", "-o", "jsonpath={.clusters[*].primary}"); got != c.Status.CurrentPrimary {
		t.Errorf("its primary is %q", got)
	}
	for name, arguments := range map[string][]string{"DUE IN": {"status", "-o", "wide"}, "clusters:\n": {"status", "-o", "yaml"}, "development": {"--version"}} {
		if text := run(arguments...); !strings.Contains(text, name) {
			t.Errorf("%q does not say %q:\n%s", arguments, name, text)
		}
	}
	told := s.watches(program)
	told("awake")
	asked := time.Now()
	run("keep-awake", c.Name, "2h")
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	s.keptAwake(c, asked, 2*time.Hour)
	run("release", c.Name)
	s.awake(c, time.Until(up.Add(time.Minute)), "active", "an open session") // it must be up for the threshold before it sleeps on request
	_, idle := session.Close()
	t.Logf("%s", run("sleep", c.Name, "--timeout", toCommand))
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	if at := asleepSince(c); at.After(idle.Add(time.Minute)) {
		t.Errorf("asleep on request after %s: it was the threshold", at.Sub(idle))
	}
	s.hibernated(c)
	if got := state(); got != "asleep" {
		t.Errorf("asleep it is %q", got)
	}
	told("asleep")
	s.annotate(c, scenario.InactivityMinutes, never) // it would go to sleep again before everybody has seen it awake
	t.Logf("%s", run("wake", c.Name, "--wait"))
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	if got := state(); got != "awake" {
		t.Errorf("woken it is %q", got)
	}
	told("awake")
	s.examined(c, run)
}

// examined checks that doctor finds nothing wrong, and that its archive tells of the cluster without its password.
func (s *story) examined(c *cnpgv1.Cluster, run func(...string) string) {
	s.Helper()
	path := filepath.Join(s.TempDir(), "doctor.tar.gz")
	if text := run("doctor", c.Name, "--archive", path); !strings.Contains(text, "finds nothing wrong") || strings.Contains(text, "Cannot ") {
		s.Errorf("doctor says:\n%s", text)
	}
	opened, err := os.Open(path)
	s.must(err)
	defer func() { _ = opened.Close() }()
	text, err := gzip.NewReader(opened)
	s.must(err)
	var names strings.Builder
	password := s.password(c)
	for archive := tar.NewReader(text); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		s.must(err)
		content, err := io.ReadAll(archive)
		s.must(err)
		names.WriteString(header.Name + "\n")
		if strings.Contains(string(content), password) {
			s.Errorf("%s has the password of the application", header.Name)
		}
	}
	for _, name := range []string{
		"/findings.txt", "/versions.json", "/deployments/scale-to-zero.json", "/plugin/pods.json", "/plugin/ports.json", ".log",
		c.Name + "/cluster.json", c.Name + "/explain.json", c.Status.CurrentPrimary + ".log", c.Status.CurrentPrimary + ".metrics",
	} {
		if !strings.Contains(names.String(), name+"\n") {
			s.Errorf("the archive has no %s:\n%s", name, names.String())
		}
	}
}

// toCommand is how long the command that puts a cluster to sleep waits for a busy operator.
const toCommand = "10m"

// watches runs status --watch; the returned function waits until it prints a state of the only cluster.
func (s *story) watches(program string) func(state string) {
	s.Helper()
	watch := exec.CommandContext(s.ctx, program, "status", "--watch", "-n", s.namespace, "-o", `jsonpath={.state}{"\n"}`)
	watch.Cancel = func() error { return watch.Process.Signal(os.Interrupt) } // like a person ends it
	written, err := watch.StdoutPipe()
	s.must(err)
	s.must(watch.Start())
	states := make(chan string, 100)
	go func() {
		defer close(states)
		for lines := bufio.NewScanner(written); lines.Scan(); {
			states <- lines.Text()
		}
	}()
	return func(state string) {
		s.Helper()
		deadline := time.After(toHealthy) // status --watch pauses for longer after a look that took longer
		for {
			select {
			case got, ok := <-states:
				if !ok {
					s.Fatalf("status --watch ended before it printed %q", state)
				}
				if got == state {
					return
				}
			case <-deadline:
				s.Fatalf("status --watch did not print %q", state)
			}
		}
	}
}

// replicaOf returns an instance that is not the primary.
func replicaOf(c *cnpgv1.Cluster) string {
	for _, name := range c.Status.InstanceNames {
		if name != c.Status.CurrentPrimary {
			return name
		}
	}
	return ""
}
