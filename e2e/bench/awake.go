package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// gatewaySlices is the managed-by label value of the gateway's EndpointSlices.
const gatewaySlices = "scale-to-zero.cnpg-i.io"

var errInBetween = errors.New("the gateway has EndpointSlices for an awake cluster")

// awake compares transactions a second through the -rw Service, from a pod beside the clusters and over TLS, and demands that
// nothing of ours stands in between.
func awake(ctx context.Context, kube *scenario.Kubernetes, namespace string, runs int) error {
	with, without := kube.NewCluster(namespace, "served-with", 1, never), kube.NewCluster(namespace, "served-without", 1, never)
	without.Spec.Plugins = nil
	// The kernel shares a busy processor out by what the pods request, and the sidecar's request is its pod's: without one
	// elsewhere PostgreSQL would get more of it on the one side, and less would be left to the client that is measured.
	with.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("300m")}
	if err := begin(ctx, kube, with); err != nil {
		return err
	}
	pod, err := primaryOf(ctx, kube, with)
	if err != nil {
		return err
	}
	without.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: processor(pod)}
	if err := begin(ctx, kube, without); err != nil {
		return err
	}
	if err := kube.StartClientPod(ctx, with); err != nil {
		return err
	}
	passwords := map[*cnpgv1.Cluster]string{}
	for _, c := range []*cnpgv1.Cluster{with, without} {
		d, err := databaseOf(ctx, kube, c)
		if err != nil {
			return err
		}
		if err := d.reachable(ctx); err != nil {
			return err
		}
		passwords[c] = d.password
	}
	run := func(c *cnpgv1.Cluster, arguments string) (string, error) {
		out, err := kube.Client(ctx, c.Namespace, fmt.Sprintf(`PGPASSWORD=%s %s %s "host=%s-rw user=app dbname=app sslmode=require" 2>&1`,
			passwords[c], pgbenchProgram, arguments, c.Name))
		if err != nil {
			return out, fmt.Errorf("%w: %s", err, out)
		}
		return out, nothingBetween(ctx, kube, c)
	}
	fmt.Println("\n| pgbench through -rw, transactions a second | with | without | ratio |\n|---|---|---|---|")
	if err := rates(with, without, runs, run); err != nil {
		return err
	}
	doomed := &corev1.Pod{}
	doomed.Namespace, doomed.Name = with.Namespace, "client"
	return errors.Join(kube.Delete(ctx, doomed), kube.Delete(ctx, with), kube.Delete(ctx, without))
}

func begin(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) error {
	if err := kube.Create(ctx, c); err != nil {
		return fmt.Errorf("create cluster %s: %w", c.Name, err)
	}
	return kube.AwaitHealthy(ctx, c, toHealthy)
}

// processor is how much of it a pod's containers request.
func processor(pod *corev1.Pod) resource.Quantity {
	var sum resource.Quantity
	for i := range pod.Spec.Containers {
		sum.Add(pod.Spec.Containers[i].Resources.Requests[corev1.ResourceCPU])
	}
	return sum
}

// nothingBetween demands that no EndpointSlice of the gateway belongs to a Service of the cluster.
func nothingBetween(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) error {
	var list discoveryv1.EndpointSliceList
	if err := kube.List(ctx, &list, client.InNamespace(c.Namespace), client.MatchingLabels{discoveryv1.LabelManagedBy: gatewaySlices}); err != nil {
		return fmt.Errorf("list the gateways' EndpointSlices: %w", err)
	}
	for i := range list.Items {
		if service := list.Items[i].Labels[discoveryv1.LabelServiceName]; strings.HasPrefix(service, c.Name+"-") {
			return fmt.Errorf("%w: Service %s", errInBetween, service)
		}
	}
	return nil
}
