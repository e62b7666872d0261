package main

import (
	"context"
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// otherInstallation returns the namespace of another installation of which a replica is ready, or "". Two would take each other's
// EndpointSlices for those of dead replicas, and remove them. It is found by the EndpointSlices of its Service, which have the
// labels of that.
func otherInstallation(ctx context.Context, reader client.Reader, own string) (string, error) {
	var slices discoveryv1.EndpointSliceList
	if err := reader.List(ctx, &slices, client.MatchingLabels{"app": "scale-to-zero", "cnpg.io/pluginName": contract.PluginName}); err != nil {
		return "", fmt.Errorf("list the EndpointSlices of the plugin: %w", err)
	}
	for i := range slices.Items {
		for _, endpoint := range slices.Items[i].Endpoints {
			if slices.Items[i].Namespace != own && ptr.Deref(endpoint.Conditions.Ready, false) {
				return slices.Items[i].Namespace, nil
			}
		}
	}
	return "", nil
}
