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

// With the token of an instance's own pod nothing can be changed but what the sidecar changes.
func TestInstancesAreLimited(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "limited", 2, never))
	other := kube.NewCluster(s.namespace, "neighbour", 1, never)
	s.must(kube.Create(s.ctx, other))
	schedule := scenario.NewScheduledBackup(c, "limited", "0 0 0 1 1 *")
	foreign := scenario.NewScheduledBackup(other, "neighbour", "0 0 0 1 1 *")
	s.must(kube.Create(s.ctx, schedule))
	s.must(kube.Create(s.ctx, foreign))
	as := func(pod string) client.Client {
		s.Helper()
		token, err := kube.Exec(s.ctx, s.namespace, pod, "postgres", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
		s.must(err)
		instance, err := kube.As(strings.TrimSpace(token))
		s.must(err)
		return instance
	}
	primary, standby := as(c.Status.CurrentPrimary), as(replicaOf(c))
	merge := func(by client.Client, object client.Object, patch string) error {
		return by.Patch(s.ctx, object.DeepCopyObject().(client.Object), client.RawPatch("application/merge-patch+json", []byte(patch)))
	}
	for _, row := range []struct {
		rule   string
		by     client.Client
		object client.Object
		patch  string
	}{
		{"another image", primary, c, `{"spec":{"imageName":"example.org/other:17"}}`},
		{"more instances", primary, c, `{"spec":{"instances":5}}`},
		{"no plugins", primary, c, `{"spec":{"plugins":[]}}`},
		{"larger storage", primary, c, `{"spec":{"storage":{"size":"2Gi"}}}`},
		{"superuser access", primary, c, `{"spec":{"enableSuperuserAccess":true}}`},
		{"a parameter", primary, c, `{"spec":{"postgresql":{"parameters":{"archive_command":"true"}}}}`},
		{"rules of pg_hba", primary, c, `{"spec":{"postgresql":{"pg_hba":["host all all all trust"]}}}`},
		{"resources", primary, c, `{"spec":{"resources":{"limits":{"cpu":"9"}}}}`},
		{"another service account", primary, c, `{"spec":{"serviceAccountName":"default"}}`},
		{"a label", primary, c, `{"metadata":{"labels":{"team":"mine"}}}`},
		{"a finalizer", primary, c, `{"metadata":{"finalizers":["example.org/keep"]}}`},
		{"an owner", primary, c, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"x"}]}}`},
		{"the threshold", primary, c, `{"metadata":{"annotations":{"xata.io/scale-to-zero-inactivity-minutes":"1"}}}`},
		{"turning the feature off", primary, c, `{"metadata":{"annotations":{"xata.io/scale-to-zero-enabled":"false"}}}`},
		{"the gateway's acknowledgement", primary, c, `{"metadata":{"annotations":{"xata.io/scale-to-zero-gateway-ready":"x"}}}`},
		{"who woke it", primary, c, `{"metadata":{"annotations":{"xata.io/scale-to-zero-last-wake":"{}"}}}`},
		{"somebody's annotation", primary, c, `{"metadata":{"annotations":{"example.org/x":"y"}}}`},
		{"fencing", primary, c, `{"metadata":{"annotations":{"cnpg.io/fencedInstances":"[\"*\"]"}}}`},
		{"the switch, from a standby", standby, c, `{"metadata":{"annotations":{"cnpg.io/hibernation":"on"}}}`},
		{"another cluster's switch", primary, other, `{"metadata":{"annotations":{"cnpg.io/hibernation":"on"}}}`},
		{"another cluster's schedule", primary, foreign, `{"spec":{"suspend":true}}`},
		{"the schedule's times", primary, schedule, `{"spec":{"schedule":"0 0 0 2 2 *"}}`},
		{"the schedule's method", primary, schedule, `{"spec":{"method":"volumeSnapshot"}}`},
		{"suspending, from a standby", standby, schedule, `{"spec":{"suspend":true}}`},
	} {
		if err := merge(row.by, row.object, row.patch); err == nil {
			t.Errorf("an instance changed %s", row.rule)
		}
	}
	if err := primary.Delete(s.ctx, c.DeepCopy()); err == nil {
		t.Error("an instance deleted its Cluster")
	}
	for rule, err := range map[string]error{
		"keep its cluster awake": merge(primary, c, `{"metadata":{"annotations":{"xata.io/scale-to-zero-keep-awake-until":"`+time.Now().Add(time.Minute).UTC().Format(time.RFC3339)+`"}}}`),
		"suspend its schedule":   merge(primary, schedule, `{"metadata":{"annotations":{"xata.io/scale-to-zero-suspended":"`+time.Now().UTC().Format(time.RFC3339)+`"}},"spec":{"suspend":true}}`),
	} {
		if err != nil {
			t.Errorf("an instance may not %s: %v", rule, err)
		}
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
