// Package lifecycle injects the sidecar into the pods of a cluster that lists the plugin.
//
// The operator calls twice. It calls EVALUATE when it plans a pod and whenever it checks for drift, and compares the answers
// with each other. EVALUATE therefore answers with a constant placeholder, unless the cluster's running instances are to get a
// new sidecar at once: then it answers with the real one. The operator calls CREATE when it creates a pod. CREATE replaces
// either form by the real sidecar, shortens the periods of the startup probes that a wake waits for, and prepares a pod that may
// doze; this rolls no running cluster. The requests of what it adds fit the LimitRanges of the namespace; where none can, both
// calls leave the pod as it is. An error of either call would prevent the pod's creation, so this package never returns one.
package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/cloudnative-pg/cnpg-i-machinery/pkg/pluginhelper/object"
	"github.com/cloudnative-pg/cnpg-i/pkg/lifecycle"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/requests"
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
	// ResultForbidden means that a LimitRange admits the pod, and would refuse it with the sidecar.
	ResultForbidden Result = "forbidden"
	// ResultUnreadable means that the request could not be decoded.
	ResultUnreadable Result = "unreadable"
)

// Results returns every result.
func Results() []Result {
	return []Result{ResultInjected, ResultSkipped, ResultMissing, ResultForbidden, ResultUnreadable}
}

// Observer observes the outcome of each call; NotInjected gets the reason why an instance gets no sidecar, and the Cluster.
type Observer interface {
	Injected(operation string, result Result)
	NotInjected(cluster metav1.ObjectMeta, why string)
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
	// LimitRanges lists the LimitRanges of a namespace, from what the plugin watches.
	LimitRanges func(ctx context.Context, namespace string) ([]corev1.LimitRange, error)
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
func (s *Server) LifecycleHook(ctx context.Context, request *lifecycle.OperatorLifecycleRequest) (*lifecycle.OperatorLifecycleResponse, error) {
	operation := request.GetOperationType().GetType()
	patch, result := s.patch(ctx, request, operation)
	s.Observer.Injected(nameOf(operation), result)
	return &lifecycle.OperatorLifecycleResponse{JsonPatch: patch}, nil
}

// nameOf returns the operation without the prefix that the protocol gives the names of its values.
func nameOf(operation lifecycle.OperatorOperationType_Type) string {
	return strings.ToLower(strings.TrimPrefix(operation.String(), "TYPE_"))
}

func (s *Server) patch(ctx context.Context, request *lifecycle.OperatorLifecycleRequest, operation lifecycle.OperatorOperationType_Type) ([]byte, Result) {
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
		s.Logger.Error("the pod of a request cannot be read", "operation", nameOf(operation), "error", err.Error())
		return nil, ResultUnreadable
	}
	if pod.Labels["cnpg.io/podRole"] != "instance" {
		return nil, ResultSkipped
	}
	logger := s.Logger.With("operation", nameOf(operation), "namespace", pod.Namespace, "pod", pod.Name)
	owner := readCluster(request.GetClusterDefinition())
	injected, err := s.inject(&pod, &owner, s.limits(ctx, pod.Namespace, logger), operation == lifecycle.OperatorOperationType_TYPE_CREATE)
	if err != nil {
		s.Observer.NotInjected(owner.identity(), err.Error())
		logger.Error("the sidecar is not injected", "error", err.Error())
		var forbidden forbiddenError
		if errors.As(err, &forbidden) {
			return nil, ResultForbidden
		}
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

// limits returns the limits of a namespace. If they cannot be read the pod is judged without them, which keeps EVALUATE constant.
func (s *Server) limits(ctx context.Context, namespace string, logger *slog.Logger) limits {
	ranges, err := s.LimitRanges(ctx, namespace)
	if err != nil {
		logger.Error("cannot list the LimitRanges", "error", err.Error())
	}
	var of limits
	for i := range ranges {
		of = append(of, ranges[i].Spec.Limits...)
	}
	return of
}

// forbiddenError means that a LimitRange would refuse the pod because of the sidecar.
type forbiddenError string

func (e forbiddenError) Error() string {
	return "a LimitRange of its namespace would refuse the pod with it: " + string(e)
}

// inject returns the pod to create or, if create is false, to plan. What a LimitRange would refuse only because of the sidecar gets
// none in either case, or the operator would delete a running instance for one that cannot be created.
func (s *Server) inject(pod *corev1.Pod, owner *cluster, of limits, create bool) (*corev1.Pod, error) {
	made, err := s.make(pod, owner, of)
	if err != nil {
		return nil, err
	}
	if why := of.refusal(made); why != "" && of.refusal(withoutSidecar(pod)) == "" {
		return nil, forbiddenError(why)
	}
	switch {
	case create:
		return made, nil
	case owner.updatesImmediately(s.AtOnce):
		return Inject(pod, s.Sidecar)
	default:
		return Inject(pod, Placeholder())
	}
}

// make returns the pod to create.
func (s *Server) make(pod *corev1.Pod, owner *cluster, of limits) (*corev1.Pod, error) {
	sidecar := s.Sidecar
	fitted := of.fit(sidecar.Resources.In(guaranteed(of.defaulted(pod))))
	sidecar.Resources = requests.Sidecars{Burstable: fitted, Guaranteed: fitted}
	injected, err := Inject(pod, sidecar)
	if err != nil {
		return nil, err
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
		shrinkBootstrapRequests(injected, of)
	}
	return injected, nil
}

// withoutSidecar returns the pod as the operator alone would create it.
func withoutSidecar(pod *corev1.Pod) *corev1.Pod {
	plain := pod.DeepCopy()
	plain.Spec.Containers = slices.DeleteFunc(plain.Spec.Containers, func(c corev1.Container) bool { return c.Name == containerName })
	return plain
}
