// Package operator is the Operator service: it says which annotations of a Cluster are not understood, in the words of the Event
// that they lead to otherwise, for an operator that asks before it takes the Cluster.
//
// Today's operators do not ask. CloudNativePG 1.28.0 to 1.28.2, 1.29.0, 1.29.1 and 1.30.0 have a client for these calls
// (internal/cnpi/plugin/client/cluster.go) and use it nowhere, neither in their webhooks nor in their loop. Where the service is
// declared they ask for its capabilities once for each connection and list them in the Cluster's status, and that is all: it
// does no harm, and no good either. It is not declared unless a setting says so (VALIDATE_CLUSTERS), for the sake of an
// operator that would ask: by that client's ways an error of ours, or a plugin out of reach, would refuse what somebody
// writes to a Cluster that lists the plugin, and so the switch of a person who wakes it while the plugin is down. Whoever
// wants mistakes refused has the admission policy, which depends on nobody.
package operator

import (
	"context"
	"encoding/json"
	"time"

	"github.com/cloudnative-pg/cnpg-i/pkg/operator"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// Server is the Operator service. SetStatusInCluster and Deregister are not implemented: a status of ours would have the operator
// look at every cluster every five seconds, and nobody calls the other.
type Server struct {
	operator.UnimplementedOperatorServer
	// Now is the clock, by which times in annotations may be too far ahead.
	Now func() time.Time
}

// GetCapabilities declares both validations, and not MutateCluster, which changes nothing.
func (s *Server) GetCapabilities(context.Context, *operator.OperatorCapabilitiesRequest) (*operator.OperatorCapabilitiesResult, error) {
	capability := func(kind operator.OperatorCapability_RPC_Type) *operator.OperatorCapability {
		return &operator.OperatorCapability{Type: &operator.OperatorCapability_Rpc{Rpc: &operator.OperatorCapability_RPC{Type: kind}}}
	}
	return &operator.OperatorCapabilitiesResult{Capabilities: []*operator.OperatorCapability{
		capability(operator.OperatorCapability_RPC_TYPE_VALIDATE_CLUSTER_CREATE),
		capability(operator.OperatorCapability_RPC_TYPE_VALIDATE_CLUSTER_CHANGE),
	}}, nil
}

// ValidateClusterCreate lists every annotation that is not understood.
func (s *Server) ValidateClusterCreate(
	_ context.Context, request *operator.OperatorValidateClusterCreateRequest,
) (*operator.OperatorValidateClusterCreateResult, error) {
	annotations, err := annotationsOf(request.GetDefinition())
	if err != nil {
		return nil, err
	}
	return &operator.OperatorValidateClusterCreateResult{ValidationErrors: s.mistakes(nil, annotations)}, nil
}

// ValidateClusterChange lists those that are new or changed: whoever scales a cluster or wakes it is not held up by what was
// wrong with it before.
func (s *Server) ValidateClusterChange(
	_ context.Context, request *operator.OperatorValidateClusterChangeRequest,
) (*operator.OperatorValidateClusterChangeResult, error) {
	before, err := annotationsOf(request.GetOldCluster())
	if err != nil {
		return nil, err
	}
	after, err := annotationsOf(request.GetNewCluster())
	if err != nil {
		return nil, err
	}
	return &operator.OperatorValidateClusterChangeResult{ValidationErrors: s.mistakes(before, after)}, nil
}

// MutateCluster changes nothing: a default that is written down no longer follows the plugin's, and for some annotations none is
// not the same as the default.
func (s *Server) MutateCluster(_ context.Context, request *operator.OperatorMutateClusterRequest) (*operator.OperatorMutateClusterResult, error) {
	if _, err := annotationsOf(request.GetDefinition()); err != nil {
		return nil, err
	}
	return &operator.OperatorMutateClusterResult{}, nil
}

// mistakes are the annotations that are not understood and were not the same before.
func (s *Server) mistakes(before, after map[string]string) []*operator.ValidationError {
	_, problems := idle.ParsePolicy(after, s.Now())
	var mistakes []*operator.ValidationError
	for _, problem := range problems {
		if had, was := before[problem.Key]; was && had == problem.Value {
			continue
		}
		mistakes = append(mistakes, &operator.ValidationError{
			PathComponents: []string{"metadata", "annotations", problem.Key}, Value: problem.Value, Message: problem.Allowed,
		})
	}
	return mistakes
}

func annotationsOf(definition []byte) (map[string]string, error) {
	var cluster struct {
		Metadata struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(definition, &cluster); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "read the Cluster: %v", err)
	}
	return cluster.Metadata.Annotations, nil
}
