// Package operator is the Operator service: it reports the invalid annotations of a Cluster, in the words of the Event that
// they otherwise cause, to an operator that validates a Cluster before accepting it.
//
// Current operators do not. CloudNativePG 1.28.0 to 1.28.2, 1.29.0, 1.29.1 and 1.30.0 have a client for these calls
// (internal/cnpi/plugin/client/cluster.go), but use it neither in their webhooks nor in their loop. If the service is declared,
// they only ask for its capabilities once per connection and list them in the Cluster's status, which does neither harm nor
// good. The service is declared only with a setting (VALIDATE_CLUSTERS), because of operators that would use it: with that
// client, an error of ours or an unreachable plugin would reject every write to a Cluster that lists the plugin, including that
// of a person who turns hibernation off while the plugin is down. To have mistakes rejected, use the admission policy, which
// depends on no running program.
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

// Server is the Operator service. It does not implement SetStatusInCluster, since a status of ours would make the operator
// reconcile every cluster every five seconds, nor Deregister, which is never called.
type Server struct {
	operator.UnimplementedOperatorServer
	// Now is the clock, used to find times in annotations that are too far ahead.
	Now func() time.Time
}

// GetCapabilities declares both validations, but not MutateCluster, which changes nothing.
func (s *Server) GetCapabilities(context.Context, *operator.OperatorCapabilitiesRequest) (*operator.OperatorCapabilitiesResult, error) {
	capability := func(kind operator.OperatorCapability_RPC_Type) *operator.OperatorCapability {
		return &operator.OperatorCapability{Type: &operator.OperatorCapability_Rpc{Rpc: &operator.OperatorCapability_RPC{Type: kind}}}
	}
	return &operator.OperatorCapabilitiesResult{Capabilities: []*operator.OperatorCapability{
		capability(operator.OperatorCapability_RPC_TYPE_VALIDATE_CLUSTER_CREATE),
		capability(operator.OperatorCapability_RPC_TYPE_VALIDATE_CLUSTER_CHANGE),
	}}, nil
}

// ValidateClusterCreate reports every invalid annotation.
func (s *Server) ValidateClusterCreate(
	_ context.Context, request *operator.OperatorValidateClusterCreateRequest,
) (*operator.OperatorValidateClusterCreateResult, error) {
	annotations, err := annotationsOf(request.GetDefinition())
	if err != nil {
		return nil, err
	}
	return &operator.OperatorValidateClusterCreateResult{ValidationErrors: s.mistakes(nil, annotations)}, nil
}

// ValidateClusterChange reports those that are new or changed: earlier mistakes must not prevent scaling or waking a cluster.
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

// MutateCluster changes nothing: a default that is written down would no longer follow the plugin's, and for some annotations
// absence differs from the default.
func (s *Server) MutateCluster(_ context.Context, request *operator.OperatorMutateClusterRequest) (*operator.OperatorMutateClusterResult, error) {
	if _, err := annotationsOf(request.GetDefinition()); err != nil {
		return nil, err
	}
	return &operator.OperatorMutateClusterResult{}, nil
}

// mistakes returns the invalid annotations that are new or changed.
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
