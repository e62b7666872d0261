package waker

import (
	"testing"
	"testing/synctest"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// replaced makes the cluster one that a person has replaced by a manifest without annotations of this project.
func replaced(c *cnpgv1.Cluster) {
	awake(c)
	for _, key := range []string{contract.AnnotationFencedInstances, contract.AnnotationDozingSince, contract.AnnotationPostgresStopped, contract.AnnotationLastWake} {
		delete(c.Annotations, key)
	}
}

func TestResolve_aClusterThatIsReplacedWhilePostgreSQLStops(t *testing.T) {
	t.Parallel()
	lifted := func(c *cnpgv1.Cluster) { delete(c.Annotations, contract.AnnotationFencedInstances) }
	for _, row := range []struct {
		rule   string
		states []func(*cnpgv1.Cluster) // a second each; the client connects in the last
		ready  time.Duration           // when the Service leads to the pod; zero: never
		held   time.Duration           // from the last state on
	}{
		{"its clients are held until the Service leads to the pod", []func(*cnpgv1.Cluster){stopping, replaced}, 10 * time.Second, 9 * time.Second},
		{"also if the fence was lifted before", []func(*cnpgv1.Cluster){stopping, lifted, replaced}, 10 * time.Second, 8 * time.Second},
		{"or hibernation was turned on", []func(*cnpgv1.Cluster){stopping, func(c *cnpgv1.Cluster) { c.Annotations[contract.AnnotationHibernation] = "on" }, replaced}, 10 * time.Second, 8 * time.Second},
		{"for two minutes", []func(*cnpgv1.Cluster){stopping, replaced}, 0, 2 * time.Minute},
		{"since the fence was lifted", []func(*cnpgv1.Cluster){stopping, lifted, replaced}, 0, 2*time.Minute - time.Second},
		{"not if the stop is recorded", []func(*cnpgv1.Cluster){doze, replaced}, 0, 0},
		{"nor if somebody else has woken it since", []func(*cnpgv1.Cluster){stopping, func(c *cnpgv1.Cluster) {
			replaced(c)
			c.Annotations[contract.AnnotationLastWake] = "another"
		}}, 0, 0},
		{"nor if it is another Cluster of that name", []func(*cnpgv1.Cluster){stopping, func(c *cnpgv1.Cluster) { replaced(c); c.UID = "another" }}, 0, 0},
		{"nor if it was awake", []func(*cnpgv1.Cluster){awake, replaced}, 0, 0},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 5*time.Minute, row.states[0])
				w.postgres.Store(true)
				w.pod("orders-1", "10.0.0.1", same)
				if row.ready != 0 {
					w.later(row.ready, func() { w.endpoint("orders-rw", "10.0.0.1") })
				}
				var last time.Time
				for _, state := range row.states[1:] {
					time.Sleep(time.Second) // the bubble's clock
					w.change(state)
					last = time.Now()
				}
				got, err := w.waker.Resolve(t.Context(), service("-rw"), by)
				if took := time.Since(last); err != nil || got != primary || took < row.held || took > row.held+readAgain {
					t.Errorf("got %s, %v after %s, want %s", got, err, took, row.held)
				}
			})
		})
	}
}

func TestStopping_parsesTheAnnotationsOfEachVersionOnce(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	tooFar := now.Add(contract.MaxKeepAwake + time.Hour)
	cluster := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: "1", Annotations: map[string]string{
		contract.AnnotationEnabled: "true", contract.AnnotationIgnore: "client=192.0.2.10", contract.AnnotationKeepAwakeUntil: tooFar.Format(time.RFC3339),
	}}}
	var known Stopping
	parsed := func(at time.Time) (item *idle.Pattern, problems int) {
		view := known.View(cluster, at)
		return &view.Policy.Ignore[0], view.Problems
	}
	first, problems := parsed(now)
	if again, _ := parsed(now.Add(time.Minute)); again != first || problems != 1 {
		t.Errorf("the same version: parsed again is %t, %d problems", again != first, problems)
	}
	if later, problems := parsed(now.Add(time.Hour)); later == first || problems != 0 {
		t.Errorf("once a time is near enough: parsed again is %t, %d problems", later != first, problems)
	}
	before, _ := parsed(now.Add(2 * time.Hour))
	cluster.ResourceVersion = "2"
	if after, _ := parsed(now.Add(2 * time.Hour)); after == before {
		t.Error("another version is not parsed")
	}
	known.Forget(types.NamespacedName{Namespace: namespace, Name: name})
	if len(known.views.Keys()) != 0 {
		t.Error("a Cluster that is gone is kept")
	}
}
