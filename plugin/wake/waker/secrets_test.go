package waker

import (
	"testing"
	"testing/synctest"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
)

// rotate changes the password of the application's user.
func rotate(c *cnpgv1.Cluster) { c.Status.SecretsResourceVersion.ApplicationSecretVersion += "1" }

// A client may use the new password at once.
func TestResolve_waitsUntilAChangedSecretIsApplied(t *testing.T) {
	t.Parallel()
	const toPostgres = 3 * time.Second // operate's
	same := func(*world) {}
	for _, row := range []struct {
		rule   string
		asleep func(*cnpgv1.Cluster)
		made   func(*corev1.Pod)
		change func(*world)
		took   time.Duration // at most half a second more
	}{
		{"nobody waits for Secrets that have not changed", hibernated, ready, same, toPostgres},
		{"after a change the instance manager has its time once the pod is ready", hibernated, ready, func(w *world) { w.change(rotate) }, toPostgres + applyTime},
		{"also if it was the Secret of a managed role", hibernated, ready, func(w *world) {
			w.change(func(c *cnpgv1.Cluster) {
				c.Status.SecretsResourceVersion.ManagedRoleSecretVersions = map[string]string{"reporting": "2"}
			})
		}, toPostgres + applyTime},
		{"also if this replica has seen the cluster asleep only", hibernated, ready, func(w *world) {
			*w.waker.Stopping = Stopping{}
			w.touch()
		}, toPostgres + applyTime},
		{"a pod that does not get ready is not waited for any longer", hibernated, func(*corev1.Pod) {}, func(w *world) { w.change(rotate) }, toPostgres + applyTimeout},
		{"nobody waits after a doze without a change", doze, ready, same, 200 * time.Millisecond},
		{"a change during a doze is waited for, too", doze, ready, func(w *world) { w.change(rotate) }, 200*time.Millisecond + applyTime},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, time.Minute, row.asleep)
				w.made = row.made
				row.change(w)
				if w.read().Annotations["cnpg.io/hibernation"] == "" {
					w.pod("orders-1", "10.0.0.1", row.made)
					go w.manage()
				} else {
					go w.operate()
				}
				began := time.Now()
				if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took < row.took || took > row.took+500*time.Millisecond {
					t.Errorf("the client was held for %s, want %s", took, row.took)
				}
				again := time.Now()
				if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); err != nil || time.Since(again) > 500*time.Millisecond {
					t.Errorf("the next client was held for %s, and %v", time.Since(again), err)
				}
			})
		})
	}
}
