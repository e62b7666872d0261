// Package tests proves the project's promises on a real cluster. It runs against the cluster in KUBECONFIG, with CloudNativePG
// and the plugin installed. Images: POSTGRES_IMAGE is the operand, PGBOUNCER_IMAGE that of the poolers, DRIVERS_IMAGE has
// clients in several languages, and NEIGHBOUR_IMAGE is the plugin of e2e/neighbour. NEXT_POSTGRES_IMAGE and the images of the
// tag NEXT_TAG, of another version, are the targets of the upgrade tests. DOZES, HANDOVERS, LOST_ANSWERS, RENEWALS, SESSIONS, GAPS,
// CYCLES, THRESHOLDS and RESTARTS set the repetitions of the tests of rare races, and SEED repeats their random moments.
package tests

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
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

	"github.com/cnpg-i/scale-to-zero/e2e/cluster"
	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// toHealthy bounds the creation of a cluster on two busy cores, also while the operator is away in the turn of another test.
	toHealthy = 10 * time.Minute
	// toSettle bounds the wait for what happens at once. It is long because a busy machine may stand still for seconds; `make bench`
	// measures how soon things happen.
	toSettle = time.Minute
	// toSleep bounds the wait for hibernation: an attempt to sleep that such a machine breaks off is repeated after 10, 20 and 40 s.
	toSleep = 3 * time.Minute
	// toAttempt bounds the time from a threshold of 12 s to the first attempt to sleep. An idle instance is sampled once a minute: if
	// nothing made the sidecar look when the threshold has passed, it would look 48 s later.
	toAttempt = 45 * time.Second
	// toSample bounds the wait for what a sample of the sidecar's shows: an idle database is sampled once a minute.
	toSample = 2 * time.Minute
	// pollEvery is the pause between two polls: without it, a waiting test would keep the machine busy.
	pollEvery = 200 * time.Millisecond
	// toHibernate bounds the operator's part after hibernation: half of the 180 s for which a smart shutdown waits for a session.
	toHibernate = 90 * time.Second
	// never is a threshold, in minutes, that no test reaches.
	never = "600"
	// soon is a threshold, in minutes, for a test that needs a sleeping cluster and does not ask how it fell asleep.
	soon = "0.05"
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
	if soaking { // it prints figures
		fmt.Println(scenario.Conditions(context.Background()))
	}
	meters(context.Background())
	code := m.Run()
	if os.Getenv("KEEP_NAMESPACES") == "" {
		returnLent(context.Background())
	}
	os.Exit(code)
}

// story is one test's namespace and what it does there.
type story struct {
	*testing.T
	ctx       context.Context
	namespace string
}

// whole leaves a test to `make e2e`: `make test` has the tests without which a promise would have no proof.
func whole(t *testing.T) {
	t.Helper()
	if os.Getenv("CORE") != "" {
		t.Skip("make e2e runs it")
	}
}

// disturber is the story of a test that may disturb what all tests use: every disturbing action is a method of it, and only turn and
// alone return one.
type disturber struct{ *story }

// preparer is the story of a test that prepares for its turn.
type preparer struct{ *story }

// alone is begin for a test during which no other can run: it is not parallel. `make e2e` runs these on a cluster of their own.
func alone(t *testing.T) *disturber {
	t.Helper()
	return &disturber{begin(t)}
}

// disturbing is begin for a test that disturbs what all tests use, and so is not parallel either. `make e2e` runs these
// before all parallel ones.
func disturbing(t *testing.T) *preparer {
	t.Helper()
	return &preparer{begin(t)}
}

// turn returns the story with which the test may disturb, once its clusters are healthy. At the test's end, the plugin recovers.
func (s *preparer) turn(clusters ...*cnpgv1.Cluster) *disturber {
	s.Helper()
	s.Cleanup(func() { s.ctx = cleanup(s.T); s.rolledOut() })
	for _, c := range clusters {
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	}
	return &disturber{s.story}
}

// longest is how long a test may take, so that one that hangs fails, and alone.
const longest = 20 * time.Minute

// begin creates a namespace; if the test fails, it keeps a diagnosis.
func begin(t *testing.T) *story {
	t.Helper()
	ctx := t.Context()
	if !soaking {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, longest, fmt.Errorf("the test has not ended within %s", longest))
		t.Cleanup(cancel)
	}
	prefix := strings.NewReplacer("/", "-", "_", "-", "'", "").Replace(strings.ToLower(strings.TrimPrefix(t.Name(), "Test")))
	if len(prefix) > 40 {
		prefix = prefix[:40]
	}
	namespace, err := kube.Namespace(ctx, prefix)
	if err != nil {
		t.Fatal(err)
	}
	s := &story{T: t, ctx: ctx, namespace: namespace}
	spends(t, namespace)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if t.Failed() {
			keep(t, diagnose(ctx, s.namespace))
		}
		if os.Getenv("KEEP_NAMESPACES") != "" {
			return
		}
		_ = deleteNamespace(ctx, namespace)
		if t.Failed() && s.namespace != namespace { // of a borrowed cluster
			_ = deleteNamespace(ctx, s.namespace)
		}
	})
	return s
}

// deleteNamespace deletes the Clusters first: the namespace keeps them until their pods are gone, and the operator would try in vain to
// create what they lack.
func deleteNamespace(ctx context.Context, name string) error {
	if err := kube.DeleteAllOf(ctx, &cnpgv1.Cluster{}, client.InNamespace(name)); err != nil {
		return err
	}
	doomed := &corev1.Namespace{}
	doomed.Name = name
	return kube.Delete(ctx, doomed)
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

// provided returns the value of a variable that names what a test needs beside the cluster; it is made if it is not there.
// A cluster of KUBECONFIG has what its owner gave it: the test is skipped without.
func provided(t *testing.T, variable string) string {
	t.Helper()
	value, err := scenario.Provided(t.Context(), variable)
	if errors.Is(err, scenario.ErrNotProvided) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// randomly returns what chooses a test's random moments. SEED repeats those of another run.
func randomly(t *testing.T) *rand.Rand {
	t.Helper()
	seed := time.Now().UnixNano()
	if text := os.Getenv("SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseInt(text, 10, 64); err != nil {
			t.Fatalf("SEED is %q, want a number", text)
		}
	}
	t.Logf("SEED=%d repeats the random moments", seed)
	return rand.New(rand.NewPCG(uint64(seed), 0)) // it is to be repeated
}

// madeHere reports whether the cluster was made for the tests on this machine.
func (s *story) madeHere() bool {
	s.Helper()
	layout, err := cluster.DefaultLayout("..")
	s.must(err)
	return !layout.Another()
}

// onlyHere skips a test that would hurt the owner of a cluster that was not made here.
func (s *story) onlyHere() {
	s.Helper()
	if !s.madeHere() {
		s.Skip("it would change what belongs to the owner of the cluster")
	}
}

// unseen ends a test that does not see the processes of the node: it skips only on a cluster that was not made here.
func (s *story) unseen() {
	s.Helper()
	if s.madeHere() {
		s.Fatal("the processes of the node cannot be seen")
	}
	s.Skip("the processes of the node cannot be seen from here")
}

// until repeats a scenario until its precondition held: otherwise the scenario has shown nothing.
func (s *story) until(held func() bool, precondition string) {
	s.Helper()
	const tries = 5
	for range tries {
		if held() {
			return
		}
		s.Logf("once more, because it did not hold: %s", precondition)
	}
	s.Fatalf("in %d tries it never held: %s", tries, precondition)
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
	s.starts(c)
	s.must(kube.StartClient(s.ctx, c))
	return c
}

// together creates clusters, waits until all are healthy, and starts a client pod.
func (s *story) together(clusters ...*cnpgv1.Cluster) {
	s.Helper()
	for _, c := range clusters {
		s.starts(c)
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

// awake checks that this reason, as the sidecar names it, keeps the cluster awake when the threshold has passed from now on.
func (s *story) awake(c *cnpgv1.Cluster, threshold time.Duration, reason, why string) {
	s.Helper()
	if err := kube.StaysAwake(s.ctx, c, threshold, reason); err != nil {
		s.Fatalf("%s: %v", why, err)
	}
}

// asleepOnTime checks that the attempt which puts the cluster to sleep begins no earlier than the threshold after before, and soon after
// the threshold after after. An earlier attempt is only logged: a sample may miss a session that has just ended, because the kernel
// reports it a moment after the socket is gone, and the report ends that attempt.
func (s *story) asleepOnTime(c *cnpgv1.Cluster, before, after time.Time, threshold time.Duration) {
	s.Helper()
	var tried time.Time
	at, err := kube.AwaitCluster(s.ctx, c, "hibernated by the sidecar", threshold+toSleep, func(c *cnpgv1.Cluster) bool {
		if began := attempted(c); began.After(tried) {
			if tried = began; tried.Before(before.Add(threshold)) {
				log, err := kube.LogsSince(s.ctx, c.Namespace, c.Status.CurrentPrimary, scenario.SidecarContainer, before.Add(-threshold))
				s.Logf("an attempt began %s too early (%v):\n%s", before.Add(threshold).Sub(tried), err, log)
			}
		}
		return scenario.HibernationOn(c)
	})
	s.must(err)
	late := tried.Sub(after.Add(threshold))
	s.Logf("tried %.2fs after the end of the last session and the threshold of %s, hibernation on %.2fs after that",
		late.Seconds(), threshold, at.Sub(tried).Seconds())
	if tried.Before(before.Add(threshold)) {
		s.Errorf("tried to sleep %s too early", before.Add(threshold).Sub(tried))
	}
	if late > toAttempt {
		s.Errorf("tried to sleep %s after the threshold, want at most %s", late, toAttempt)
	}
	s.hibernated(c)
}

// attempted returns when the sidecar began the attempt to sleep that the Cluster shows, by its own clock; zero if it shows none.
func attempted(c *cnpgv1.Cluster) time.Time {
	const announcedFor = 30 * time.Second
	_, deadline, _ := strings.Cut(c.Annotations[scenario.Announced], " ")
	if until, err := time.Parse(time.RFC3339Nano, deadline); err == nil {
		return until.Add(-announcedFor)
	}
	if !scenario.HibernationOn(c) {
		return time.Time{}
	}
	return asleepSince(c) // the announcement was missed
}

// asleepSince returns the end of the second in which the sidecar turned hibernation on.
func asleepSince(c *cnpgv1.Cluster) time.Time {
	since, err := time.Parse(time.RFC3339, c.Annotations[scenario.AsleepSince])
	if err != nil {
		return time.Time{}
	}
	return since.Add(time.Second)
}

// hibernated checks that the operator completes hibernation before a smart shutdown would stop waiting for a session.
func (s *story) hibernated(c *cnpgv1.Cluster) {
	s.Helper()
	began := time.Now()
	done, err := kube.AwaitCluster(s.ctx, c, "hibernated", toHibernate, scenario.Hibernated)
	s.must(err)
	s.Logf("hibernated after %.2fs", done.Sub(began).Seconds())
}

// fallsAsleep waits until the cluster is put to sleep, and checks that it sleeps then.
func (s *story) fallsAsleep(c *cnpgv1.Cluster, what string) {
	s.Helper()
	_, err := kube.AwaitCluster(s.ctx, c, what, toSleep, scenario.HibernationOn)
	s.must(err)
	s.hibernated(c)
}

// wake turns hibernation off by hand and waits until the cluster is healthy again.
func (s *story) wake(c *cnpgv1.Cluster) {
	s.Helper()
	s.must(kube.Wake(s.ctx, c))
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.must(kube.AwaitReachable(s.ctx, c, "rw", toSettle))
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
func (s *story) awaitMetric(pod, line string) {
	s.Helper()
	for deadline := time.Now().Add(toSample); ; pause(s, pollEvery) {
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
