// Package lifecycle injects the sidecar into the pods of a cluster that lists the plugin.
//
// The operator asks twice. EVALUATE is asked when a pod is planned and whenever drift is looked for; its answers are
// compared with each other, so it is given a constant form, unless a new sidecar is to reach the running instances of that
// cluster at once: then it is given the real one. CREATE is asked when a pod is made; it replaces either by the real one, and
// shortens the startup probe's period, for which no running cluster is rolled. An error of either would keep pods from being
// made, so none is ever returned for reasons of ours.
package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"github.com/cloudnative-pg/cnpg-i-machinery/pkg/pluginhelper/object"
	"github.com/cloudnative-pg/cnpg-i/pkg/lifecycle"
	corev1 "k8s.io/api/core/v1"
)

// Result is how a call of the hook ended.
type Result string

// The results.
const (
	// ResultInjected says that a patch was answered.
	ResultInjected Result = "injected"
	// ResultSkipped says that the object is not an instance of a cluster.
	ResultSkipped Result = "skipped"
	// ResultMissing says that the pod has no place for the sidecar.
	ResultMissing Result = "missing"
	// ResultUnreadable says that the request could not be read.
	ResultUnreadable Result = "unreadable"
)

// Observer is told how each call ended; missing says what was looked for, for the Cluster of the request.
type Observer interface {
	Injected(operation string, result Result)
	Missing(cluster []byte, what string)
}

// Server is the lifecycle service.
type Server struct {
	lifecycle.UnimplementedOperatorLifecycleServer
	// Sidecar is what CREATE injects.
	Sidecar Sidecar
	// AtOnce has EVALUATE give the real form to every cluster that does not say otherwise.
	AtOnce bool
	// Observer counts; Logger tells.
	Observer Observer
	Logger   *slog.Logger
}

// GetCapabilities asks for pods, when they are planned and when they are made.
func (s *Server) GetCapabilities(context.Context, *lifecycle.OperatorLifecycleCapabilitiesRequest) (*lifecycle.OperatorLifecycleCapabilitiesResponse, error) {
	return &lifecycle.OperatorLifecycleCapabilitiesResponse{
		LifecycleCapabilities: []*lifecycle.OperatorLifecycleCapabilities{{
			Group: "", Kind: "Pod",
			OperationTypes: []*lifecycle.OperatorOperationType{
				{Type: lifecycle.OperatorOperationType_TYPE_CREATE},
				{Type: lifecycle.OperatorOperationType_TYPE_EVALUATE},
			},
		}},
	}, nil
}

// LifecycleHook answers with the patch that injects the sidecar, or without one. It never returns an error.
func (s *Server) LifecycleHook(_ context.Context, request *lifecycle.OperatorLifecycleRequest) (*lifecycle.OperatorLifecycleResponse, error) {
	operation := request.GetOperationType().GetType()
	patch, result := s.patch(request, operation)
	s.Observer.Injected(operation.String(), result)
	return &lifecycle.OperatorLifecycleResponse{JsonPatch: patch}, nil
}

func (s *Server) patch(request *lifecycle.OperatorLifecycleRequest, operation lifecycle.OperatorOperationType_Type) ([]byte, Result) {
	sidecar := s.Sidecar
	switch operation {
	case lifecycle.OperatorOperationType_TYPE_EVALUATE:
		if !RollsFor(request.GetClusterDefinition(), s.AtOnce) {
			sidecar = Placeholder()
		}
	case lifecycle.OperatorOperationType_TYPE_CREATE:
	default:
		return nil, ResultSkipped
	}
	kind, err := object.GetKind(request.GetObjectDefinition())
	if err == nil && kind != "Pod" {
		return nil, ResultSkipped
	}
	var pod corev1.Pod
	if err == nil {
		err = json.Unmarshal(request.GetObjectDefinition(), &pod)
	}
	if err != nil {
		s.Logger.Error("the pod of a request cannot be read", "operation", operation.String(), "error", err.Error())
		return nil, ResultUnreadable
	}
	if pod.Labels["cnpg.io/podRole"] != "instance" {
		return nil, ResultSkipped
	}
	logger := s.Logger.With("operation", operation.String(), "namespace", pod.Namespace, "pod", pod.Name)
	injected, err := Inject(&pod, sidecar)
	if err != nil {
		var missing *MissingError
		if errors.As(err, &missing) {
			s.Observer.Missing(request.GetClusterDefinition(), missing.What)
		}
		logger.Error("the sidecar is not injected", "error", err.Error())
		return nil, ResultMissing
	}
	if operation == lifecycle.OperatorOperationType_TYPE_CREATE {
		if !OwnStartupProbe(request.GetClusterDefinition()) {
			Quicken(injected)
		}
		Linger(injected)
	}
	patch, err := changes(&pod, injected)
	if err != nil {
		logger.Error("the patch cannot be made", "error", err.Error())
		return nil, ResultUnreadable
	}
	logger.Debug("the sidecar is injected")
	return patch, ResultInjected
}
