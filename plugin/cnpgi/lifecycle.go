package cnpgi

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

// Observer observes the outcome of each call; NotInjected gets the reason why an instance gets no sidecar, and the
// Cluster.
type Observer interface {
	Injected(operation string, result Result)
	NotInjected(cluster metav1.ObjectMeta, why string)
}

// Lifecycle is the lifecycle service.
type Lifecycle struct {
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
func (l *Lifecycle) GetCapabilities(
	context.Context, *lifecycle.OperatorLifecycleCapabilitiesRequest,
) (*lifecycle.OperatorLifecycleCapabilitiesResponse, error) {
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
func (l *Lifecycle) LifecycleHook(
	ctx context.Context, request *lifecycle.OperatorLifecycleRequest,
) (*lifecycle.OperatorLifecycleResponse, error) {
	operation := request.GetOperationType().GetType()
	patch, result := l.patch(ctx, request, operation)
	l.Observer.Injected(nameOf(operation), result)
	return &lifecycle.OperatorLifecycleResponse{JsonPatch: patch}, nil
}

// nameOf returns the operation without the prefix that the protocol gives the names of its values.
func nameOf(operation lifecycle.OperatorOperationType_Type) string {
	return strings.ToLower(strings.TrimPrefix(operation.String(), "TYPE_"))
}

func (l *Lifecycle) patch(
	ctx context.Context, request *lifecycle.OperatorLifecycleRequest, operation lifecycle.OperatorOperationType_Type,
) ([]byte, Result) {
	if operation != lifecycle.OperatorOperationType_TYPE_EVALUATE &&
		operation != lifecycle.OperatorOperationType_TYPE_CREATE {
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
		l.Logger.Error("cannot read the pod of a request", "operation", nameOf(operation), "error", err.Error())
		return nil, ResultUnreadable
	}
	if pod.Labels["cnpg.io/podRole"] != "instance" {
		return nil, ResultSkipped
	}
	logger := l.Logger.With("operation", nameOf(operation), "namespace", pod.Namespace, "pod", pod.Name)
	owner := readCluster(request.GetClusterDefinition())
	injected, err := l.inject(&pod, &owner, l.limits(ctx, pod.Namespace, logger),
		operation == lifecycle.OperatorOperationType_TYPE_CREATE)
	if err != nil {
		l.Observer.NotInjected(owner.identity(), err.Error())
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

// limits returns the limits of a namespace, or none if they cannot be read, because the hook must not fail.
func (l *Lifecycle) limits(ctx context.Context, namespace string, logger *slog.Logger) limits {
	ranges, err := l.LimitRanges(ctx, namespace)
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

// inject returns the pod to create or, if create is false, to plan. A pod that a LimitRange would refuse only because
// of the sidecar gets none in either case: otherwise the operator would delete a running instance that it cannot
// replace.
func (l *Lifecycle) inject(pod *corev1.Pod, owner *cluster, of limits, create bool) (*corev1.Pod, error) {
	made, err := l.make(pod, owner, of)
	if err != nil {
		return nil, err
	}
	if why := of.refusal(made); why != "" && of.refusal(withoutSidecar(pod)) == "" {
		return nil, forbiddenError(why)
	}
	switch {
	case create:
		return made, nil
	case owner.updatesImmediately(l.AtOnce):
		return injectSidecar(pod, l.Sidecar)
	default:
		return injectSidecar(pod, placeholder())
	}
}

// make returns the pod to create.
func (l *Lifecycle) make(pod *corev1.Pod, owner *cluster, of limits) (*corev1.Pod, error) {
	sidecar := l.Sidecar
	fitted := of.fit(sidecar.Resources.In(guaranteed(of.defaulted(pod))))
	sidecar.Resources = Sidecars{Burstable: fitted, Guaranteed: fitted}
	injected, err := injectSidecar(pod, sidecar)
	if err != nil {
		return nil, err
	}
	if !owner.ownStartupProbe() {
		setStartupProbePeriod(injected)
	}
	if l.SidecarProbes {
		setSidecarStartupProbePeriods(injected)
	}
	addPreStopHook(injected)
	if owner.mayDoze(time.Now()) {
		prepareSidecar(injected, l.Sidecar.DozeMemory)
		shrinkBootstrapRequests(injected, of)
	}
	return injected, nil
}

// withoutSidecar returns the pod as the operator alone would create it.
func withoutSidecar(pod *corev1.Pod) *corev1.Pod {
	plain := pod.DeepCopy()
	plain.Spec.Containers = slices.DeleteFunc(plain.Spec.Containers,
		func(c corev1.Container) bool { return c.Name == containerName })
	return plain
}
