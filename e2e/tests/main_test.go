// Package tests proves the project's promises on a real cluster. It runs against the cluster in KUBECONFIG, with CloudNativePG
// and the plugin installed. Images: POSTGRES_IMAGE is the operand, PGBOUNCER_IMAGE that of the poolers, DRIVERS_IMAGE has
// clients in several languages, and NEIGHBOUR_IMAGE is the plugin of e2e/neighbour. NEXT_PLUGIN_IMAGE, NEXT_SIDECAR_IMAGE and
// NEXT_POSTGRES_IMAGE are the targets of the upgrade tests, for which other names of the same images suffice; NEXT_VERSION is
// the version that the first two report, if they are other builds. HANDOVERS, LOST_ANSWERS and RENEWALS set the repetitions of
// the tests of rare races.
package tests

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/go-logr/logr"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// toHealthy bounds the creation of a cluster on two busy cores.
	toHealthy = 4 * time.Minute
	// toAct is the maximum time from the threshold to the switch if nothing prevents sleep.
	toAct = 5 * time.Second
	// toSettle bounds immediate reactions on two busy cores; `make bench` measures them.
	toSettle = 20 * time.Second
	// toHibernate bounds the operator's part after the switch: less than a smart shutdown that waits for a session.
	toHibernate = 45 * time.Second
	// toNotice is how long it may take to notice a changed annotation.
	toNotice = 2 * time.Second
	// never is a threshold, in minutes, that no test reaches.
	never = "600"
)

var kube *scenario.Kubernetes

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	slog.SetDefault(slog.New(slog.DiscardHandler)) // Helm's log
	if os.Getenv("KUBECONFIG") == "" {
		if os.Getenv("REQUIRE_CLUSTER") != "" {
			fmt.Fprintln(os.Stderr, "KUBECONFIG is not set, and REQUIRE_CLUSTER says that these tests must run")
			os.Exit(1)
		}
		fmt.Fprintln(os.Stderr, "KUBECONFIG is not set: the end-to-end tests are left out (make e2e runs them)")
		os.Exit(0)
	}
	var err error
	if kube, err = scenario.Connect(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// story is one test's namespace and what it does there.
type story struct {
	*testing.T
	ctx       context.Context
	namespace string
}

// begin creates a namespace; if the test fails, it keeps a diagnosis.
func begin(t *testing.T) *story {
	t.Helper()
	ctx := t.Context()
	prefix := strings.NewReplacer("/", "-", "_", "-", "'", "").Replace(strings.ToLower(strings.TrimPrefix(t.Name(), "Test")))
	if len(prefix) > 40 {
		prefix = prefix[:40]
	}
	namespace, err := kube.Namespace(ctx, prefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if t.Failed() {
			keep(t, kube.Diagnose(ctx, namespace))
		}
		if os.Getenv("KEEP_NAMESPACES") != "" {
			return
		}
		doomed := &corev1.Namespace{}
		doomed.Name = namespace
		_ = kube.Delete(ctx, doomed)
	})
	return &story{T: t, ctx: ctx, namespace: namespace}
}

// keep writes the diagnosis to a file if `go test -artifacts` keeps files, so that the test's own output stays readable,
// otherwise to the test's log.
func keep(t *testing.T, diagnosis string) {
	t.Helper()
	if kept := flag.Lookup("test.artifacts"); kept == nil || kept.Value.String() != "true" {
		t.Log(diagnosis)
		return
	}
	if err := os.WriteFile(filepath.Join(t.ArtifactDir(), "diagnosis.txt"), []byte(diagnosis), 0o600); err != nil {
		t.Log(err, diagnosis)
	}
}

// repeats returns how often a test repeats its scenario: the value of the environment variable, or few.
func repeats(t *testing.T, variable string, few int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return few
	}
	count, err := strconv.Atoi(text)
	if err != nil || count < 1 {
		t.Fatalf("%s is %q, want a positive number", variable, text)
	}
	return count
}

// must ends the test on an error.
func (s *story) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// running creates the cluster, waits until it is healthy and starts a client pod.
func (s *story) running(c *cnpgv1.Cluster) *cnpgv1.Cluster {
	s.Helper()
	s.must(kube.Create(s.ctx, c))
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.must(kube.StartClient(s.ctx, c))
	return c
}

// together creates clusters at once, waits until all are healthy, and starts a client pod.
func (s *story) together(clusters ...*cnpgv1.Cluster) {
	s.Helper()
	for _, c := range clusters {
		s.must(kube.Create(s.ctx, c))
	}
	for _, c := range clusters {
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	}
	s.must(kube.StartClient(s.ctx, clusters[0]))
}

// annotate sets an annotation of the cluster.
func (s *story) annotate(object client.Object, key, value string) {
	s.Helper()
	s.must(kube.Annotate(s.ctx, object, key, &value))
}

// open connects to a Service of the cluster.
func (s *story) open(c *cnpgv1.Cluster, service string) *scenario.Session {
	s.Helper()
	session, err := kube.Open(s.ctx, c, service)
	s.must(err)
	return session
}

// awake checks that the cluster stays awake for the given time.
func (s *story) awake(c *cnpgv1.Cluster, during time.Duration, why string) {
	s.Helper()
	if err := kube.StaysAwake(s.ctx, c, during); err != nil {
		s.Fatalf("%s: %v", why, err)
	}
}

// asleepOnTime checks that the switch is turned on no earlier than the threshold after before, and at most toSettle later than
// the threshold after after, and that the operator completes hibernation.
func (s *story) asleepOnTime(c *cnpgv1.Cluster, before, after time.Time, threshold time.Duration) {
	s.Helper()
	at, err := kube.AwaitCluster(s.ctx, c, "switched off by the sidecar", time.Until(after.Add(threshold+time.Minute)), scenario.SwitchedOn)
	s.must(err)
	s.Logf("switch turned on %.2fs after the end of the last session and the threshold of %s",
		at.Sub(after.Add(threshold)).Seconds(), threshold)
	if at.Before(before.Add(threshold)) {
		s.Errorf("switched on %s too early", before.Add(threshold).Sub(at))
	}
	if at.After(after.Add(threshold + toSettle)) {
		s.Errorf("switched on %s after the threshold, want at most %s", at.Sub(after.Add(threshold)), toSettle)
	}
	s.hibernated(c, at)
}

// hibernated waits for the operator's condition and checks that it follows the switch in time.
func (s *story) hibernated(c *cnpgv1.Cluster, switched time.Time) {
	s.Helper()
	done, err := kube.AwaitCluster(s.ctx, c, "hibernated", time.Minute, scenario.Hibernated)
	s.must(err)
	s.Logf("hibernated %.2fs after the switch", done.Sub(switched).Seconds())
	if took := done.Sub(switched); took > toHibernate {
		s.Errorf("hibernation took %s, want at most %s", took, toHibernate)
	}
}

// wake turns the switch off by hand and waits until the cluster is healthy again.
func (s *story) wake(c *cnpgv1.Cluster) {
	s.Helper()
	s.must(kube.Wake(s.ctx, c))
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.must(kube.AwaitReachable(s.ctx, c, "rw", time.Minute))
}

// instances lists the cluster's instance pods.
func (s *story) instances(c *cnpgv1.Cluster) []corev1.Pod {
	s.Helper()
	var pods corev1.PodList
	s.must(kube.List(s.ctx, &pods, client.InNamespace(c.Namespace),
		client.MatchingLabels{"cnpg.io/cluster": c.Name, "cnpg.io/podRole": "instance"}))
	return pods.Items
}

// sidecar returns the sidecar's container of a pod, or nil.
func sidecar(pod corev1.Pod) *corev1.Container {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == scenario.SidecarContainer {
			return &pod.Spec.Containers[i]
		}
	}
	return nil
}

// metrics reads the metrics of a pod's sidecar.
func (s *story) metrics(pod string) string {
	s.Helper()
	page, err := kube.Page(s.ctx, s.namespace, pod, "9189", "metrics")
	s.must(err)
	return page
}

// awaitMetric reads the metrics of a pod's sidecar until they contain the line. A container without a readiness probe is ready
// before its program listens.
func (s *story) awaitMetric(pod, line string, within time.Duration) {
	s.Helper()
	for deadline := time.Now().Add(within); ; {
		page, err := kube.Page(s.ctx, s.namespace, pod, "9189", "metrics")
		if !apierrors.IsServiceUnavailable(err) {
			s.must(err)
		}
		if strings.Contains(page, line) {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("no metric %s: %v\n%s", line, err, page)
		}
	}
}
