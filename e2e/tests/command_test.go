package tests

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// The command line for people, against a real cluster: it asks the sidecars through the API server, and never turns the switch
// on itself.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	s := begin(t)
	program := filepath.Join(t.TempDir(), "kubectl-scale_to_zero")
	build := exec.CommandContext(s.ctx, "go", "build", "-o", program, "./plugin")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the command: %v: %s", err, out)
	}
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
		if len(answer.Clusters) != 1 || answer.Clusters[0].Cluster != "commanded" {
			s.Fatalf("the clusters are %v", answer.Clusters)
		}
		return answer.Clusters[0].State
	}
	c := s.running(kube.NewCluster(s.namespace, "commanded", 1, "1"))
	session := s.open(c, "rw")
	s.awake(c, time.Minute+toAct, "an open session") // the least time that a cluster is up, and from one look to the next
	if got := state(); got != "awake" {
		t.Errorf("in use it is %q", got)
	}
	if text := run("explain", "commanded"); !strings.Contains(text, "(active)") {
		t.Errorf("explain does not say that it is in use:\n%s", text)
	}
	run("keep-awake", "commanded", "2h")
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	if until, err := time.Parse(time.RFC3339, c.Annotations[scenario.KeepAwakeUntil]); err != nil || time.Until(until).Round(time.Minute) != 2*time.Hour {
		t.Errorf("kept awake until %q (%v)", c.Annotations[scenario.KeepAwakeUntil], err)
	}
	run("release", "commanded")
	session.Close()
	began := time.Now()
	t.Logf("%s", run("sleep", "commanded"))
	if took := time.Since(began); took > 50*time.Second {
		t.Errorf("asleep on request after %s: it was the threshold", took)
	}
	_, err := kube.AwaitCluster(s.ctx, c, "hibernated", time.Minute, scenario.Hibernated)
	s.must(err)
	if got := state(); got != "asleep" {
		t.Errorf("asleep it is %q", got)
	}
	t.Logf("%s", run("wake", "commanded", "--wait"))
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	if got := state(); got != "awake" {
		t.Errorf("woken it is %q", got)
	}
}

// replicaOf is an instance that is not the primary.
func replicaOf(c *cnpgv1.Cluster) string {
	for _, name := range c.Status.InstanceNames {
		if name != c.Status.CurrentPrimary {
			return name
		}
	}
	return ""
}
