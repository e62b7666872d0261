package wake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// noPod is the value of the annotation postgres-stopped if no pod of an instance is left.
const noPod = "none"

// reconcileStop finds out whether PostgreSQL has stopped if the sidecar does not record it, perhaps because it is down. Otherwise the
// gateway would hold clients forever.
func (c *Controller) reconcileStop(ctx context.Context, seen *snapshot, again *requeue) error {
	if !seen.view.AwaitsStop() {
		c.stops.Delete(seen.name)
		return nil
	}
	known, _ := c.stops.Load(seen.name)
	before, _ := known.(plan.Stop)
	stop, due := before.Await(seen.view, again.now)
	c.stops.Store(seen.name, stop)
	if again.now.Before(due) {
		again.at(due)
		return nil
	}
	instances, pod, err := c.inspectInstances(ctx, seen)
	if err != nil {
		return err
	}
	stop, stopped, next := stop.Observe(instances, again.now)
	c.stops.Store(seen.name, stop)
	again.at(next)
	switch {
	case stopped:
		c.Logger.Info("PostgreSQL was found stopped for a doze without its sidecar's word",
			"namespace", seen.name.Namespace, "cluster", seen.name.Name)
		return c.unlessChanged(ctx, seen, map[string]*string{contract.AnnotationPostgresStopped: &pod})
	case stop.Ignored(again.now):
		c.Logger.Warn("the fence is lifted, since PostgreSQL was not stopped", "namespace", seen.name.Namespace, "cluster", seen.name.Name)
		return c.unlessChanged(ctx, seen, map[string]*string{contract.AnnotationFencedInstances: nil})
	case stop.FenceTimedOut(again.now):
		c.Logger.Warn("assuming that PostgreSQL keeps running after its fence was lifted, because its sidecar does not say",
			"namespace", seen.name.Namespace, "cluster", seen.name.Name)
		return c.unlessChanged(ctx, seen, map[string]*string{contract.AnnotationDozingSince: nil})
	}
	return nil
}

// instances reads the instances' pods that have not ended from the API server, because the informers keep too little of them.
func (c *Controller) instances(ctx context.Context, seen *snapshot) ([]corev1.Pod, error) {
	var pods corev1.PodList
	of := client.MatchingLabels{endpointslice.LabelCluster: seen.name.Name}
	if err := c.APIReader.List(ctx, &pods, client.InNamespace(seen.name.Namespace), of); err != nil {
		return nil, fmt.Errorf("list the pods of Cluster %s: %w", seen.name, err)
	}
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return !endpointslice.IsInstance(&p) || endpointslice.HasEnded(&p) }), nil
}

// inspectInstances checks whether PostgreSQL's port refuses connections. The connections send nothing, so PostgreSQL logs nothing. pod
// is the UID of an instance's pod, or noPod.
func (c *Controller) inspectInstances(ctx context.Context, seen *snapshot) (found []plan.Instance, pod string, err error) {
	pods, err := c.instances(ctx, seen)
	if err != nil {
		return nil, "", err
	}
	for i := range pods {
		instance := &pods[i]
		pod = string(instance.UID)
		found = append(found, plan.Instance{
			UID: instance.UID, Ready: postgresReady(instance), Refuses: refuses(ctx, c.Dial, instance.Status.PodIP, contract.PostgresPort),
		})
	}
	return found, cmp.Or(pod, noPod), nil
}

// postgresReady reports whether the kubelet reports PostgreSQL's container as ready.
func postgresReady(pod *corev1.Pod) bool {
	for i := range pod.Status.ContainerStatuses {
		if status := &pod.Status.ContainerStatuses[i]; status.Name == contract.PostgresContainer {
			return status.Ready
		}
	}
	return false
}

// refuses reports whether the address refuses connections.
func refuses(ctx context.Context, dial func(context.Context, string) (net.Conn, error), address string, port uint16) bool {
	if _, err := netip.ParseAddr(address); err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := dial(ctx, net.JoinHostPort(address, strconv.Itoa(int(port))))
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// unlessChanged annotates the Cluster, unless it has changed.
func (c *Controller) unlessChanged(ctx context.Context, seen *snapshot, annotations map[string]*string) error {
	return ignoreConflict(waker.Annotate(ctx, c.Client, seen.cluster, annotations))
}

// ignoreConflict returns nil for a conflict: the change that caused it leads to another reconciliation.
func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}
