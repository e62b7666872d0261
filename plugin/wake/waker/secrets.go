package waker

import (
	"fmt"
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

// A woken instance manager tries each second whether PostgreSQL is ready, and then sets the passwords of the Secrets (1.30:
// internal/management/controller/instance_controller.go). Nothing says that it has. One that ends a doze sets them more than 20 s after
// PostgreSQL accepts sessions: RequestAndWaitFencingOff in pkg/management/postgres/instance.go sleeps that long. So a cluster whose
// Secrets change while it dozes is to hibernate.
const (
	// applyTime is how long it is given once the pod is ready.
	applyTime = 2 * time.Second
	// applyTimeout is how long a wake waits at most, from when PostgreSQL accepts sessions.
	applyTimeout = 15 * time.Second
)

// secrets are the versions of a cluster's Secrets that its instance manager has applied; empty if this replica has seen it asleep only.
type secrets struct {
	cluster types.UID
	applied string
	// asleep reports whether the cluster sleeps, changed whether its versions have changed since, and pending whether it was woken with
	// other versions than applied.
	asleep, changed, pending bool
}

// noteSecrets adds a state of a Cluster.
func (s *Stopping) noteSecrets(cluster *cnpgv1.Cluster, view plan.Cluster) {
	name, versions := client.ObjectKeyFromObject(cluster), &cluster.Status.SecretsResourceVersion
	now := fmt.Sprint(versions.ApplicationSecretVersion, " ", versions.SuperuserSecretVersion, " ", versions.ManagedRoleSecretVersions)
	s.secrets.Change(name, func(known *secrets) bool {
		switch {
		case view.Sleeps():
			if known.pending && !known.asleep { // nobody has waited, and they have been applied by now
				known.applied = now
			}
			known.asleep, known.changed = true, known.applied != "" && known.applied != now
		case known.cluster == cluster.UID && (known.asleep || known.pending):
			known.asleep, known.changed, known.pending = false, false, known.pending || known.applied != now
		default:
			*known = secrets{applied: now}
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

// unapplied returns for how long the instance manager may still have to apply Secrets, now that PostgreSQL accepts sessions.
func (w *wake) unapplied(seen *snapshot, now time.Time) time.Duration {
	name := clusterOf(w.service)
	if !w.Stopping.secrets.Get(name).pending {
		return 0
	}
	if w.accepted.IsZero() {
		w.accepted = now
	}
	until := w.accepted.Add(applyTimeout)
	switch ready := slices.Contains(seen.ready(), w.found); {
	case !ready:
		w.ready = time.Time{}
	case w.ready.IsZero():
		w.ready = now
	}
	if applied := w.ready.Add(applyTime); !w.ready.IsZero() && applied.Before(until) {
		until = applied
	}
	if now.Before(until) {
		return until.Sub(now)
	}
	w.Stopping.secrets.Delete(name)
	return 0
}
