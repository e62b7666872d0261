// Package reconciler answers the hooks of the operator's reconciliation loop. The loop also does failover, so the answer is
// always to continue, immediately; our own work is queued.
package reconciler

import (
	"context"
	"encoding/json"

	"github.com/cloudnative-pg/cnpg-i/pkg/reconciler"
	"k8s.io/apimachinery/pkg/types"
)

// Server is the reconciler hooks service.
type Server struct {
	reconciler.UnimplementedReconcilerHooksServer
	// Enqueue must not block.
	Enqueue func(types.NamespacedName)
}

// GetCapabilities registers the hooks for Clusters.
func (s *Server) GetCapabilities(context.Context, *reconciler.ReconcilerHooksCapabilitiesRequest) (*reconciler.ReconcilerHooksCapabilitiesResult, error) {
	return &reconciler.ReconcilerHooksCapabilitiesResult{
		ReconcilerCapabilities: []*reconciler.ReconcilerHooksCapability{{Kind: reconciler.ReconcilerHooksCapability_KIND_CLUSTER}},
	}, nil
}

// Pre enqueues the cluster and lets the operator continue.
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

// Post lets the operator continue.
func (s *Server) Post(context.Context, *reconciler.ReconcilerHooksRequest) (*reconciler.ReconcilerHooksResult, error) {
	return goOn(), nil
}

func goOn() *reconciler.ReconcilerHooksResult {
	return &reconciler.ReconcilerHooksResult{Behavior: reconciler.ReconcilerHooksResult_BEHAVIOR_CONTINUE}
}
