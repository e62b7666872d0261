package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/clusterstate"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// step is the next step of a wake, as the command tells it.
type step string

const (
	stepDone step = "" // neither hibernation nor a doze is requested
	// If hibernation were turned off before the operator has deleted every pod, it would fail over.
	stepAwaitPodsDeleted step = "The operator is deleting the pods. The cluster is woken when they are gone."
	stepEndHibernation   step = "The hibernation annotation is off."
	stepAwaitStopped     step = "PostgreSQL is stopping. It is started again when it has stopped."
	stepUnfence          step = "The fence is lifted." // PostgreSQL is started again
	stepRefuse           step = plan.VolumesAtRisk     // the operator might delete volumes
)

// next returns the next step. Hibernation may be turned off before the first pod is deleted and after the last is gone;
// the patch fails if the operator has begun meanwhile. Once the cluster is healthy the operator may have begun even if
// the condition says that it waits: it writes the next reason only after it has deleted the first pod. While volumes
// are at risk no new pod may be created, so hibernation may be turned off only while all pods are left.
func (s seen) next() step {
	condition := s.Condition()
	deleting := slices.ContainsFunc(s.Pods, func(pod corev1.Pod) bool { return !pod.DeletionTimestamp.IsZero() })
	begun := deleting || condition != nil &&
		(condition.Reason != contract.HibernationWaitingForHealthy || s.Cluster.Status.Phase == cnpgv1.PhaseHealthy)
	switch {
	case s.View.Dozing && !s.View.Stopped:
		return stepAwaitStopped
	case s.View.Dozing:
		return stepUnfence
	case !s.View.HibernationOn:
		return stepDone
	case !s.PodsKnown:
		return stepAwaitPodsDeleted
	case s.View.VolumesAtRisk && (begun || len(s.Pods) == 0):
		return stepRefuse
	case s.View.Hibernated && len(s.Pods) == 0, !begun:
		return stepEndHibernation
	default:
		return stepAwaitPodsDeleted
	}
}

// woke is the output of wake.
type woke struct {
	result
	Ready bool `json:"ready"`
}

func (p *program) wakeCommand() *cobra.Command {
	wait, timeout := false, 5*time.Minute // the plugin's own default timeout for a wake
	c := &cobra.Command{
		Use: "wake CLUSTER", Short: "Wake a cluster, also one that a person put to sleep",
		Long: `Wake a cluster, also one that a person put to sleep or that does not list the plugin. While its pods are being deleted the
command waits, because waking it earlier would trigger a failover. A cluster that dozes is woken once PostgreSQL has stopped.

During a node maintenance with reusePVC false it refuses: the operator deletes the volumes of an instance that cannot be
scheduled then.`,
		Args: exactly("CLUSTER"), ValidArgsFunction: p.complete(choice{all: true}),
		RunE: func(c *cobra.Command, arguments []string) error {
			a, err := p.connect()
			if err != nil {
				return err
			}
			w := &waking{access: a, name: arguments[0], say: p.say, wait: wait}
			if err := w.wake(c.Context(), timeout); err != nil {
				return err
			}
			ready := map[bool]string{true: ", and its primary is ready"}[w.answer.Ready]
			return p.write(w.answer, w.answer.says("is "+string(w.answer.State)+ready))
		},
	}
	c.Flags().BoolVar(&wait, "wait", false, "wait until the primary is ready")
	timeoutFlag(c, &timeout, "how long to wait")
	return c
}

type waking struct {
	*access
	name string
	say  func(string, ...any)
	wait bool
	// phase is the phase printed last.
	phase  string
	answer woke
}

func (w *waking) wake(ctx context.Context, timeout time.Duration) error {
	err := poll(ctx, timeout, func(ctx context.Context) (bool, error) {
		done, err := w.look(ctx)
		var answered apierrors.APIStatus
		unreachable := err != nil && w.answer.State == "" && !errors.As(err, &answered) // and never was reached
		return done || unreachable, err
	})
	if errors.Is(err, errTooLong) && w.answer.State != "" {
		return notReached("the Cluster %q is %s and not ready after %s: %v", w.name, w.answer.State, timeout, err)
	}
	return err
}

func (w *waking) look(ctx context.Context) (bool, error) {
	cluster, err := w.get(ctx, types.NamespacedName{Namespace: w.namespace, Name: w.name})
	if err != nil {
		return false, err
	}
	pods, err := w.pods(ctx, cluster.Namespace, cluster.Name)
	if err != nil {
		return false, err
	}
	now := time.Now()
	s := see(cluster, pods, true, now)
	w.answer = woke{s.result(now), s.PrimaryReady()}
	switch next := s.next(); next {
	case stepDone:
		switch {
		case w.answer.State == clusterstate.Going:
			w.tell("A sleep is announced. If the cluster falls asleep, it is woken.")
		case !w.wait || w.answer.Ready:
			return true, nil
		default:
			w.tell(s.Progress())
		}
	case stepRefuse:
		return false, fmt.Errorf("the Cluster %q is not woken: %s", w.name, next)
	case stepAwaitPodsDeleted, stepAwaitStopped:
		w.tell(string(next))
	case stepEndHibernation, stepUnfence:
		if err := w.annotate(ctx, cluster, s.changes()); err != nil {
			return false, err
		}
		w.tell(string(next))
		w.answer.State = clusterstate.Waking
		return !w.wait, nil
	}
	return false, nil
}

// changes returns the changes of annotations that wake the cluster and remove the marks of its sleep. A person's fence
// stays. The sidecar removes the marks of a doze once PostgreSQL serves: a sidecar that restarts before needs them to
// know that it must watch the start.
func (s seen) changes() map[string]*string {
	changes := map[string]*string{
		contract.AnnotationAnnounced: nil, contract.AnnotationGatewayReady: nil, contract.AnnotationGatewayHolding: nil,
		contract.AnnotationSleepRequested: nil, contract.AnnotationLastWake: nil, // it belongs to another wake
	}
	if s.View.Fenced {
		changes[contract.AnnotationFencedInstances] = nil
	}
	if s.View.HibernationOn { // the next pod knows of no doze
		for _, key := range []string{
			contract.AnnotationDozingSince, contract.AnnotationPostgresStopped,
			contract.AnnotationHibernation, contract.AnnotationAsleepSince, contract.AnnotationAsleepReason,
		} {
			changes[key] = nil
		}
	}
	return changes
}

// tell prints a phase when it begins.
func (w *waking) tell(phase string) {
	if phase != w.phase {
		w.phase = phase
		w.say("%s", phase)
	}
}
