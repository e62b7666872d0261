package waker

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

const (
	// passwordsEvery is how often a wake looks whether the instance manager has set the passwords.
	passwordsEvery = 500 * time.Millisecond
	// passwordsTimeout is how long a wake waits for that at most, from when PostgreSQL accepts sessions.
	passwordsTimeout = 15 * time.Second
)

// secrets are the versions of a cluster's Secrets that its instance manager has applied; empty if this replica has seen
// it asleep only.
type secrets struct {
	cluster types.UID
	applied string
	// asleep reports whether the cluster sleeps, dozing whether that is a doze, and changed whether its versions have
	// changed since.
	asleep, dozing, changed bool
	// pending is when it was woken from hibernation with other versions than applied; zero once they are set. One that ends
	// a doze is not waited for: its instance manager sets passwords only after 20 s (1.30: RequestAndWaitFencingOff in
	// pkg/management/postgres/instance.go).
	pending time.Time
}

// noteSecrets adds a state of a Cluster.
func (s *Stopping) noteSecrets(cluster *cnpgv1.Cluster, view plan.Cluster, now time.Time) {
	name, versions := client.ObjectKeyFromObject(cluster), &cluster.Status.SecretsResourceVersion
	current := fmt.Sprint(versions.ApplicationSecretVersion, " ", versions.SuperuserSecretVersion, " ", versions.ManagedRoleSecretVersions)
	s.secrets.Change(name, func(known *secrets) bool {
		switch {
		case view.Sleeps():
			if !known.pending.IsZero() { // nobody has waited, and they have been applied by now
				known.applied, known.pending = current, time.Time{}
			}
			known.asleep, known.dozing, known.changed = true, view.Dozing, known.applied != "" && known.applied != current
		case known.cluster == cluster.UID && known.asleep && known.applied != current && !known.dozing:
			known.asleep, known.changed, known.pending = false, false, now
		case known.cluster != cluster.UID || known.pending.IsZero():
			*known = secrets{applied: current}
		}
		known.cluster = cluster.UID
		return true
	})
}

// SecretsChanged reports whether Secrets of a sleeping cluster have changed since this replica saw it awake.
func (s *Stopping) SecretsChanged(cluster types.NamespacedName) bool {
	known := s.secrets.Get(cluster)
	return known.asleep && known.changed
}

// passwordsPending reports whether the instance manager may still have to set passwords, now that PostgreSQL accepts
// sessions.
func (w *wake) passwordsPending(ctx context.Context, seen *snapshot, now time.Time) bool {
	name := clusterOf(w.service)
	woken := w.Stopping.secrets.Get(name).pending
	if woken.IsZero() {
		return false
	}
	if w.accepted.IsZero() {
		w.accepted = now
	}
	// If PostgreSQL started long ago, for another replica's wake, a later checkpoint may have made it impossible to
	// tell whether the passwords are set.
	lately := now.Sub(woken) < w.Limit+passwordsTimeout || w.accepted.Sub(w.phases.began) > time.Second
	if lately && now.Sub(w.accepted) < passwordsTimeout && !w.passwordsSet(ctx, seen) {
		return true
	}
	w.Stopping.secrets.Delete(name)
	return false
}

// passwordsSet reports whether the instance manager has set every password. It reads the Cluster from the API server,
// because the informers keep nothing of its roles.
func (w *wake) passwordsSet(ctx context.Context, seen *snapshot) bool {
	var cluster cnpgv1.Cluster
	if err := w.APIReader.Get(ctx, client.ObjectKeyFromObject(seen.cluster), &cluster); err != nil {
		w.Logger.Warn("cannot read whether passwords have been set", "namespace", w.service.Namespace, "cluster", w.service.Cluster, "error", err.Error())
		return false
	}
	if !managedRolesSet(&cluster) {
		return false
	}
	role := roleOfInstanceManager(&cluster)
	if role == "" {
		return true
	}
	for i := range seen.pods {
		if pod := &seen.pods[i]; pod.Name == cluster.Status.CurrentPrimary {
			address, err := netip.ParseAddr(pod.Status.PodIP)
			return err == nil && w.PasswordSet(ctx, address, role)
		}
	}
	return false
}

// managedRolesSet reports whether the instance manager has set the password of every managed role from the Secret as it
// is now.
func managedRolesSet(cluster *cnpgv1.Cluster) bool {
	if cluster.Spec.Managed == nil {
		return true
	}
	versions, set := cluster.Status.SecretsResourceVersion.ManagedRoleSecretVersions, cluster.Status.ManagedRolesStatus.PasswordStatus
	return !slices.ContainsFunc(cluster.Spec.Managed.Roles, func(role cnpgv1.RoleConfiguration) bool {
		secret := role.GetRoleSecretName()
		return secret != "" && role.Ensure != cnpgv1.EnsureAbsent && set[role.Name].SecretResourceVersion != versions[secret]
	})
}

// roleOfInstanceManager returns the role whose password the instance manager sets last whenever it starts; "" if it
// sets none. It sets that of the superuser before that of the application's user, and none without a Secret (1.30:
// refreshCredentialsFromSecret in internal/management/controller/instance_controller.go).
func roleOfInstanceManager(cluster *cnpgv1.Cluster) string {
	switch versions := cluster.Status.SecretsResourceVersion; {
	case cluster.ShouldCreateApplicationDatabase() && versions.ApplicationSecretVersion != "":
		return cluster.GetApplicationDatabaseOwner()
	case cluster.GetEnableSuperuserAccess() && versions.SuperuserSecretVersion != "":
		return "postgres"
	default:
		return ""
	}
}
