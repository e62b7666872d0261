// Package reconciler answers the hooks of the operator's reconciliation loop. The loop is the operator's, failover
// included, so the answer is always to go on, at once; what there is to do is put into our own queue.
package reconciler

import (
	"context"
	"encoding/json"

	"github.com/cloudnative-pg/cnpg-i/pkg/reconciler"
	"k8s.io/apimachinery/pkg/types"
)

// Server is the service of the reconciler hooks.
type Server struct {
	reconciler.UnimplementedReconcilerHooksServer
	// Enqueue must not block.
	Enqueue func(types.NamespacedName)
}

// GetCapabilities asks for Clusters.
func (s *Server) GetCapabilities(context.Context, *reconciler.ReconcilerHooksCapabilitiesRequest) (*reconciler.ReconcilerHooksCapabilitiesResult, error) {
	return &reconciler.ReconcilerHooksCapabilitiesResult{
		ReconcilerCapabilities: []*reconciler.ReconcilerHooksCapability{{Kind: reconciler.ReconcilerHooksCapability_KIND_CLUSTER}},
	}, nil
}

// Pre puts the cluster into the queue and lets the operator go on.
func (s *Server) Pre(_ context.Context, request *reconciler.ReconcilerHooksRequest) (*reconciler.ReconcilerHooksResult, error) {
	var cluster struct {
		Metadata struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"metadata"`
	}
	if json.Unmarshal(request.GetResourceDefinition(), &cluster) == nil && cluster.Metadata.Name != "" {
		s.Enqueue(types.NamespacedName{Namespace: cluster.Metadata.Namespace, Name: cluster.Metadata.Name})
	}
	return goOn(), nil
}

// Post lets the operator go on.
func (s *Server) Post(context.Context, *reconciler.ReconcilerHooksRequest) (*reconciler.ReconcilerHooksResult, error) {
	return goOn(), nil
}

func goOn() *reconciler.ReconcilerHooksResult {
	return &reconciler.ReconcilerHooksResult{Behavior: reconciler.ReconcilerHooksResult_BEHAVIOR_CONTINUE}
}
