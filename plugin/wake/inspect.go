package wake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// inspectTimeout leaves time of a reconciliation to what does not wait for it.
const inspectTimeout = lookTakes / 3

// inspect reads the instances' pods that have not ended from the API server, because the informers keep too little of
// them, and checks on request whether PostgreSQL's port refuses connections. The connections send nothing, so
// PostgreSQL logs nothing.
func (c *Controller) inspect(ctx context.Context, seen *snapshot, dial bool) ([]plan.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	var pods corev1.PodList
	of := client.MatchingLabels{endpointslice.LabelCluster: seen.name.Name}
	if err := c.APIReader.List(ctx, &pods, client.InNamespace(seen.name.Namespace), of); err != nil {
		return nil, fmt.Errorf("list the pods of Cluster %s: %w", seen.name, err)
	}
	found := []plan.Instance{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !endpointslice.IsInstance(pod) || endpointslice.HasEnded(pod) {
			continue
		}
		instance := plan.Instance{UID: pod.UID, Name: pod.Name, Deleting: !pod.DeletionTimestamp.IsZero()}
		for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			instance.Ready = instance.Ready || status.Name == contract.PostgresContainer && status.Ready
			if status.State.Running != nil {
				instance.Running = append(instance.Running, status.Name)
			}
		}
		instance.Refuses = dial && refuses(ctx, c.dial, pod.Status.PodIP, contract.PostgresPort)
		found = append(found, instance)
	}
	return found, nil
}

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
