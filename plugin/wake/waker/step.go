package waker

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cnpg-i/scale-to-zero/plugin/cnpgi"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres/probe"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// step is what a wake does next.
type step int

const (
	// stepAwaitInstance waits until an instance accepts sessions.
	stepAwaitInstance step = iota
	// stepAwaitPodsDeleted waits until the operator has deleted every pod. If hibernation were turned off earlier, the
	// operator would fail over.
	stepAwaitPodsDeleted
	// stepEndHibernation turns hibernation off.
	stepEndHibernation
	// stepWithdraw withdraws the announcement of a doze for which the gateway holds every client.
	stepWithdraw
	// stepAwaitStopped waits until PostgreSQL has stopped. Until then it may accept sessions, which it would cut.
	stepAwaitStopped
	// stepUnfence lifts the fence, so that PostgreSQL is started again.
	stepUnfence
	// stepGiveUp ends the wake: only people may wake the cluster, or nobody may for now.
	stepGiveUp
)

// next decides what a wake for a client does, from the Cluster and the number of pods left.
func next(cluster plan.Cluster, pods int) step {
	return nextFor(contract.CauseConnection, cluster, pods)
}

// nextFor decides what a wake does.
func nextFor(cause contract.Cause, cluster plan.Cluster, pods int) step {
	switch {
	case cluster.Dozing && cluster.Deleting:
		return stepGiveUp
	case cluster.Dozing && cluster.Stopped:
		return stepUnfence
	case cluster.Dozing || cluster.MayStillStop:
		return stepAwaitStopped
	case !cluster.HibernationOn && cluster.Holding:
		return stepWithdraw
	case !cluster.HibernationOn:
		return stepAwaitInstance
	case cluster.ObstacleTo(cause) != "":
		return stepGiveUp
	case !cluster.Hibernated || pods != 0:
		return stepAwaitPodsDeleted
	default:
		return stepEndHibernation
	}
}

// snapshot is the state of a Service and its cluster.
type snapshot struct {
	cluster *cnpgv1.Cluster
	view    plan.Cluster
	service *corev1.Service
	// behind is the Service that leads to the instances: the same, or for a Service of a Pooler the one to which its
	// PgBouncer connects.
	behind *corev1.Service
	pooler *cnpgv1.Pooler // nil: the Service is none of a Pooler
	pods   []corev1.Pod
	// bouncers are the pods of the cluster's Poolers; read only for a Service of one.
	bouncers []corev1.Pod
	slices   []discoveryv1.EndpointSlice
}

// candidates returns the instances that may serve the Service's clients, in a stable order: those that its selector
// matches, otherwise those in its endpoints. An address counts only while a pod of the cluster has it, because an
// endpoint may be outdated and its address may belong to another cluster by now.
func (s *snapshot) candidates() []netip.AddrPort {
	var found []netip.AddrPort
	held := map[netip.Addr]bool{}
	for i := range s.pods {
		pod := &s.pods[i]
		if !pod.DeletionTimestamp.IsZero() || endpointslice.HasEnded(pod) {
			continue
		}
		for _, ip := range pod.Status.PodIPs {
			if address, err := netip.ParseAddr(ip.IP); err == nil {
				held[address] = true
			}
		}
		if plan.OnlyStreaming(s.cluster) && pod.Name != s.cluster.Status.CurrentPrimary && !podReady(pod) {
			continue // it accepts sessions, but what it has may be old
		}
		if address, err := netip.ParseAddr(pod.Status.PodIP); err == nil && endpointslice.Selects(s.behind, pod, s.cluster) {
			found = append(found, netip.AddrPortFrom(address, contract.PostgresPort))
		}
	}
	if len(found) == 0 {
		for _, address := range endpointslice.Ready(s.behind, s.slices) {
			if held[address] {
				found = append(found, netip.AddrPortFrom(address, contract.PostgresPort))
			}
		}
	}
	slices.SortFunc(found, netip.AddrPort.Compare)
	return found
}

// ready returns the candidates that the kubelet reports as ready.
func (s *snapshot) ready() []netip.AddrPort {
	return slices.DeleteFunc(s.candidates(), func(candidate netip.AddrPort) bool {
		return !slices.ContainsFunc(s.pods, func(pod corev1.Pod) bool {
			return pod.Status.PodIP == candidate.Addr().String() && podReady(&pod)
		})
	})
}

// running returns the ready candidates, or all while the kubelet reports none as ready: after a wake it does so some
// seconds after PostgreSQL accepts sessions.
func (s *snapshot) running() []netip.AddrPort {
	if ready := s.ready(); len(ready) != 0 {
		return ready
	}
	return s.candidates()
}

func podReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// waitedFor returns the sidecar init containers of the pod with that address for whose startup probes PostgreSQL's
// container may have waited.
func (s *snapshot) waitedFor(address netip.Addr) []corev1.Container {
	for i := range s.pods {
		if pod := &s.pods[i]; pod.DeletionTimestamp.IsZero() && pod.Status.PodIP == address.String() {
			return cnpgi.SlowStartupProbes(pod)
		}
	}
	return nil
}

// mustReconnect reports whether the client must reconnect directly, because rules distinguish its address and the
// gateway's, which PostgreSQL or PgBouncer would see.
func (s *snapshot) mustReconnect(client, gateway netip.Addr) bool {
	if s.pooler != nil {
		return !s.view.Policy.AcceptGateway && s.pooler.Spec.PgBouncer != nil &&
			tellApart(s.pooler.Spec.PgBouncer.PgHBA, client, gateway)
	}
	spec := &s.cluster.Spec
	return !s.view.Policy.AcceptGateway &&
		(len(spec.PodSelectorRefs) != 0 || tellApart(spec.PostgresConfiguration.PgHBA, client, gateway))
}

// readAgain is when the informers are read again even without a notification.
const readAgain = time.Second

// pause returns how long to wait before PostgreSQL is probed again. asked is how long ago it was first probed, 0 if not
// yet.
func pause(candidates int, asked time.Duration) time.Duration {
	if candidates == 0 {
		return readAgain
	}
	return probe.Interval(asked)
}

// phases are the times at which the phases of a wake ended. stopped is when every pod had been deleted or PostgreSQL
// had stopped, so that the cluster could be woken; allowed is when one of the clients was allowed to wake it; patched is
// when hibernation was turned off or the fence lifted; found is when a pod had an address; and ready is when PostgreSQL
// accepted sessions.
type phases struct {
	began, stopped, allowed, patched, found, ready time.Time
}

// durations returns how long each phase took. A phase done by another replica took no time here.
func (p phases) durations() (stop, queued, patch, pod, postgres time.Duration) {
	stopped := cmp.Or(p.stopped, p.began)
	allowed := cmp.Or(p.allowed, stopped)
	patched := cmp.Or(p.patched, allowed)
	found := cmp.Or(p.found, p.ready)
	return stopped.Sub(p.began), allowed.Sub(stopped), patched.Sub(allowed), found.Sub(patched), p.ready.Sub(found)
}
