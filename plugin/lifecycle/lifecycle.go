// Package lifecycle injects the sidecar into the pods of a cluster that lists the plugin.
//
// The operator asks twice. EVALUATE is asked when a pod is planned and whenever drift is looked for; its answers are
// compared with each other, so it is given a constant form, unless a new sidecar is to reach the running instances of that
// cluster at once: then it is given the real one. CREATE is asked when a pod is made; it replaces either by the real one, and
// shortens the periods of startup probes that a wake waits for, for which no running cluster is rolled. An error of either would keep pods from being
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// Observer is told how each call ended; missing says what was looked for, and for which Cluster.
type Observer interface {
	Injected(operation string, result Result)
	Missing(cluster metav1.ObjectMeta, what string)
}

// Server is the lifecycle service.
type Server struct {
	lifecycle.UnimplementedOperatorLifecycleServer
	// Sidecar is what CREATE injects.
	Sidecar Sidecar
	// AtOnce has EVALUATE give the real form to every cluster that does not say otherwise.
	AtOnce bool
	// SidecarProbes has CREATE probe every second whether other plugins' sidecars have started.
	SidecarProbes bool
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
	if operation != lifecycle.OperatorOperationType_TYPE_EVALUATE && operation != lifecycle.OperatorOperationType_TYPE_CREATE {
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
	owner := readCluster(request.GetClusterDefinition())
	injected, err := s.inject(&pod, &owner, operation == lifecycle.OperatorOperationType_TYPE_CREATE)
	if err != nil {
		var missing *MissingError
		if errors.As(err, &missing) {
			s.Observer.Missing(owner.identity(), missing.What)
		}
		logger.Error("the sidecar is not injected", "error", err.Error())
		return nil, ResultMissing
	}
	patch, err := json.Marshal(changes(&pod, injected))
	if err != nil {
		logger.Error("the patch cannot be made", "error", err.Error())
		return nil, ResultUnreadable
	}
	logger.Debug("the sidecar is injected")
	return patch, ResultInjected
}

// inject returns the pod as it is to be created, or else as it is planned.
func (s *Server) inject(pod *corev1.Pod, owner *cluster, create bool) (*corev1.Pod, error) {
	if !create && !owner.rolls(s.AtOnce) {
		return Inject(pod, Placeholder())
	}
	injected, err := Inject(pod, s.Sidecar)
	if err != nil || !create {
		return injected, err
	}
	if !owner.ownStartupProbe() {
		SetStartupProbePeriod(injected)
	}
	if s.SidecarProbes {
		SetSidecarStartupProbePeriods(injected)
	}
	AddPreStopHook(injected)
	return injected, nil
}
