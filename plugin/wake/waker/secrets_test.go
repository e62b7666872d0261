package waker

import (
	"testing"
	"testing/synctest"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
)

// rotate changes the password of the application's user.
func rotate(c *cnpgv1.Cluster) { c.Status.SecretsResourceVersion.ApplicationSecretVersion += "1" }

// reports gives the cluster a managed role, whose new password the instance manager has set or not.
func reports(set bool) func(*cnpgv1.Cluster) {
	return func(c *cnpgv1.Cluster) {
		secret := &cnpgv1.LocalObjectReference{Name: "reporting"}
		c.Spec.Managed = &cnpgv1.ManagedConfiguration{Roles: []cnpgv1.RoleConfiguration{{Name: "reports", PasswordSecret: secret}}}
		c.Status.SecretsResourceVersion.ManagedRoleSecretVersions = map[string]string{"reporting": "2"}
		if set {
			c.Status.ManagedRolesStatus.PasswordStatus = map[string]cnpgv1.PasswordState{"reports": {SecretResourceVersion: "2"}}
		}
	}
}

// A client may use the new password at once.
func TestResolve_waitsUntilAChangedPasswordIsSet(t *testing.T) {
	t.Parallel()
	const toPostgres = 3 * time.Second // operate's
	same := func(*world) {}
	rotated := func(w *world) { w.change(rotate) }
	for _, row := range []struct {
		rule   string
		asleep func(*cnpgv1.Cluster)
		set    time.Duration // from the start of PostgreSQL until the instance manager has set the application's password
		change func(*world)
		took   time.Duration // at most half a second more
	}{
		{"nobody waits for Secrets that have not changed", hibernated, time.Hour, same, toPostgres},
		{"a changed one is waited for until its password is set", hibernated, 4 * time.Second, rotated, toPostgres + 4*time.Second},
		{"also if this replica has seen the cluster asleep only", hibernated, 2 * time.Second, func(w *world) {
			*w.waker.Stopping = Stopping{}
			w.touch()
		}, toPostgres + 2*time.Second},
		{"a Secret that was deleted is not waited for", hibernated, time.Hour, func(w *world) {
			w.change(func(c *cnpgv1.Cluster) { c.Status.SecretsResourceVersion.ApplicationSecretVersion = "" })
		}, toPostgres},
		{"the password of a managed role is set once its status says so", hibernated, 0, func(w *world) { w.change(reports(true)) }, toPostgres},
		{"one that is never set is not waited for any longer", hibernated, 0, func(w *world) { w.change(reports(false)) }, toPostgres + passwordsTimeout},
		{"nor is the application's", hibernated, time.Hour, rotated, toPostgres + passwordsTimeout},
		{"nobody waits after a doze, whose instance manager would be too late", doze, time.Hour, rotated, 200 * time.Millisecond},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, time.Minute, func(c *cnpgv1.Cluster) {
					c.Spec.Bootstrap = &cnpgv1.BootstrapConfiguration{InitDB: &cnpgv1.BootstrapInitDB{Database: "app", Owner: "app"}}
					c.Status.SecretsResourceVersion.ApplicationSecretVersion = "1"
					row.asleep(c)
				})
				w.passwordSet = time.Now().Add(toPostgres + row.set)
				row.change(w)
				if w.read().Annotations["cnpg.io/hibernation"] == "" {
					w.pod("orders-1", "10.0.0.1", ready)
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

// Another replica has woken the cluster, so that this one has never looked whether the passwords are set. Since then a checkpoint has
// made it impossible to tell.
func TestResolve_waitsForNoPasswordLongAfterTheWake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, func(c *cnpgv1.Cluster) {
			c.Spec.Bootstrap = &cnpgv1.BootstrapConfiguration{InitDB: &cnpgv1.BootstrapInitDB{Database: "app", Owner: "app"}}
			c.Status.SecretsResourceVersion.ApplicationSecretVersion = "1"
		})
		*w.waker.Stopping = Stopping{}
		w.touch()
		w.change(awake)
		w.pod("orders-1", "10.0.0.1", ready)
		w.postgres.Store(true)
		w.passwordSet = time.Now().Add(24 * time.Hour)
		time.Sleep(time.Hour) // the bubble's
		began := time.Now()
		if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); err != nil || time.Since(began) > passwordsEvery {
			t.Errorf("the client was held for %s, and %v", time.Since(began), err)
		}
	})
}
