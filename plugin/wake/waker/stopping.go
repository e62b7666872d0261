package waker

import (
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/keyed"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Stopping remembers the clusters whose PostgreSQL may be stopping for a doze. A client that replaces a Cluster removes
// its fence together with the annotations that say so. PostgreSQL stops all the same, and accepts sessions until then.
// The sidecar keeps the pod unready meanwhile, which no change of the Cluster undoes.
//
// It also remembers which Secrets of a cluster may have to be applied after a wake, and what its annotations ask for.
// The zero value is ready to use.
type Stopping struct {
	stops   keyed.Map[types.NamespacedName, stop]
	secrets keyed.Map[types.NamespacedName, secrets]
	views   keyed.Map[types.NamespacedName, versioned]
}

// versioned is the view of a version of a Cluster.
type versioned struct {
	version string
	view    plan.Cluster
}

// View reads a Cluster. The annotations of each version are parsed once: a tenant may make them long, and they matter
// to every client.
func (s *Stopping) View(cluster *cnpgv1.Cluster, now time.Time) plan.Cluster {
	name := client.ObjectKeyFromObject(cluster)
	known := s.views.Get(name)
	current := known.version != "" && known.version == cluster.ResourceVersion
	if from := known.view.UnderstoodFrom; current && (from.IsZero() || now.Before(from)) {
		return known.view.Again(cluster, now)
	}
	view := plan.View(cluster, now)
	s.views.Set(name, versioned{cluster.ResourceVersion, view})
	return view
}

// stop is a stop of PostgreSQL that has not been recorded.
type stop struct {
	cluster types.UID
	// lastWake is AnnotationLastWake since before the stop. lifted is when the cluster was found unfenced; zero if it is
	// fenced.
	lastWake string
	lifted   time.Time
}

// Note adds a state of a Cluster. It must be called for every state, in order.
func (s *Stopping) Note(cluster *cnpgv1.Cluster, now time.Time) {
	name, view, wake := client.ObjectKeyFromObject(cluster), s.View(cluster, now), cluster.Annotations[contract.AnnotationLastWake]
	s.noteSecrets(cluster, view, now)
	_, recorded := cluster.Annotations[contract.AnnotationPostgresStopped]
	s.stops.Change(name, func(known *stop) (keep bool) {
		switch {
		case recorded || view.Hibernated || view.Deleting:
			return false
		case view.Fenced:
			*known = stop{cluster: cluster.UID, lastWake: wake}
		case view.MayStillStop && *known == stop{}:
			*known = stop{cluster: cluster.UID, lastWake: wake, lifted: now}
		case known.cluster != cluster.UID, wake != "" && wake != known.lastWake: // a wake, which has waited until PostgreSQL had stopped
			return false
		case known.lifted.IsZero():
			known.lifted = now
		}
		return true
	})
}

// Forget forgets a cluster.
func (s *Stopping) Forget(cluster types.NamespacedName) {
	s.stops.Delete(cluster)
	s.secrets.Delete(cluster)
	s.views.Delete(cluster)
}

// mayStop reports whether PostgreSQL may still stop, although the fence is gone. Like a fence that a person has lifted,
// it is assumed not to stop PostgreSQL any more after [plan.LiftedFenceTimeout].
func (s *Stopping) mayStop(cluster types.NamespacedName, now time.Time) bool {
	lifted := s.stops.Get(cluster).lifted
	return !lifted.IsZero() && now.Sub(lifted) < plan.LiftedFenceTimeout
}
