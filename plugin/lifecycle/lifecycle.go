// Package lifecycle injects the sidecar into the pods of a cluster that lists the plugin.
//
// The operator calls twice. It calls EVALUATE when it plans a pod and whenever it checks for drift, and compares the answers
// with each other. EVALUATE therefore answers with a constant placeholder, unless the cluster's running instances are to get a
// new sidecar at once: then it answers with the real one. The operator calls CREATE when it creates a pod. CREATE replaces
// either form by the real sidecar, shortens the periods of the startup probes that a wake waits for, and prepares a pod that may
// doze; this rolls no running cluster. An error of either call would prevent the pod's creation, so this package never returns one.
package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/cloudnative-pg/cnpg-i-machinery/pkg/pluginhelper/object"
	"github.com/cloudnative-pg/cnpg-i/pkg/lifecycle"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Result is the outcome of a call of the hook.
type Result string

// The results.
const (
	// ResultInjected means that the answer contains a patch.
	ResultInjected Result = "injected"
	// ResultSkipped means that the object is not an instance of a cluster.
	ResultSkipped Result = "skipped"
	// ResultMissing means that the pod lacks something that the sidecar needs.
	ResultMissing Result = "missing"
	// ResultUnreadable means that the request could not be decoded.
	ResultUnreadable Result = "unreadable"
)

// Observer observes the outcome of each call; Missing gets what is missing, and the Cluster.
type Observer interface {
	Injected(operation string, result Result)
	Missing(cluster metav1.ObjectMeta, what string)
}

// Server is the lifecycle service.
type Server struct {
	lifecycle.UnimplementedOperatorLifecycleServer
	// Sidecar is what CREATE injects.
	Sidecar Sidecar
	// AtOnce makes EVALUATE use the real form for every cluster whose annotation does not say otherwise.
	AtOnce bool
	// SidecarProbes makes CREATE set the startup probes of other plugins' sidecars to every second.
	SidecarProbes bool
	// Observer counts the outcomes, Logger logs errors.
	Observer Observer
	Logger   *slog.Logger
}

// GetCapabilities registers the hook for pods, both operations.
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

// LifecycleHook answers with the patch that injects the sidecar, or with none. It never returns an error.
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

// inject returns the pod to create or, if create is false, to plan.
func (s *Server) inject(pod *corev1.Pod, owner *cluster, create bool) (*corev1.Pod, error) {
	if !create && !owner.updatesImmediately(s.AtOnce) {
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
	if owner.mayDoze(time.Now()) {
		AddReadinessProbe(injected)
		SetDozeMemoryRequest(injected, s.Sidecar.DozeMemory)
		ShrinkBootstrapRequests(injected)
	}
	return injected, nil
}
