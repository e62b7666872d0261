package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/retry"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// askWithin bounds a request to one sidecar, askAllWithin the requests to all; askAtOnce limits the concurrent
// requests.
const askWithin, askAllWithin, askAtOnce = 3 * time.Second, 15 * time.Second, 32

type access struct {
	client    client.Client
	namespace string
	resource  schema.GroupVersion
	report    func(ctx context.Context, i instance) (contract.Report, error)
	// server reads any path of the API server.
	server *rest.RESTClient
}

// instance identifies a pod of a cluster.
type instance struct{ namespace, cluster, pod string }

// connect reads the flags and the kubeconfig. It makes no request yet.
func connect(flags *genericclioptions.ConfigFlags, getenv func(string) string) (*access, error) {
	namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, fmt.Errorf("find the namespace: %w", err)
	}
	config, err := flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	config = rest.CopyConfig(config)
	config.QPS = -1 // concurrent requests are limited, and the API server has priority and fairness
	resource := schema.GroupVersion{
		Group:   cmp.Or(getenv("CUSTOM_CNPG_GROUP"), cnpgv1.SchemeGroupVersion.Group),
		Version: cmp.Or(getenv("CUSTOM_CNPG_VERSION"), cnpgv1.SchemeGroupVersion.Version),
	}
	return newAccess(config, resource, namespace)
}

func newAccess(config *rest.Config, resource schema.GroupVersion, namespace string) (*access, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register the Kubernetes types: %w", err)
	}
	scheme.AddKnownTypes(resource, &cnpgv1.Cluster{}, &cnpgv1.ClusterList{},
		&cnpgv1.ScheduledBackup{}, &cnpgv1.ScheduledBackupList{})
	metav1.AddToGroupVersion(scheme, resource)
	// All resources are known, so no discovery is needed.
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{resource, corev1.SchemeGroupVersion})
	mapper.Add(resource.WithKind("Cluster"), meta.RESTScopeNamespace)
	mapper.Add(resource.WithKind("ScheduledBackup"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	c, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	core := rest.CopyConfig(config)
	core.APIPath, core.GroupVersion, core.NegotiatedSerializer = "/api", &corev1.SchemeGroupVersion,
		clientgoscheme.Codecs.WithoutConversion()
	pods, err := rest.RESTClientFor(core)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	ask := func(ctx context.Context, i instance) (contract.Report, error) {
		report, err := throughProxy(ctx, pods, i)
		if err != nil {
			return report, fmt.Errorf("ask %s: %w", i.pod, err)
		}
		return report, nil
	}
	return &access{client: c, namespace: namespace, resource: resource, server: pods, report: ask}, nil
}

// throughProxy requests a sidecar's report through the API server's pod proxy.
func throughProxy(ctx context.Context, pods rest.Interface, i instance) (report contract.Report, err error) {
	pod := net.JoinHostPort(i.pod, strconv.Itoa(contract.SidecarPort))
	body, err := pods.Get().Namespace(i.namespace).Resource("pods").Name(pod).SubResource("proxy").
		Suffix(contract.PathActivity).MaxRetries(0).Stream(ctx)
	if err != nil {
		return report, err
	}
	defer func() { _ = body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(body, contract.MaxReportBytes+1))
	if err != nil {
		return report, err
	}
	report, err = contract.DecodeReport(answer)
	if err == nil && (report.Cluster != i.cluster || report.Pod != i.pod) {
		err = fmt.Errorf("unusable answer: it is %q of %q", report.Pod, report.Cluster)
	}
	return report, err
}

// answer is the report of a pod's sidecar, or the error.
type answer struct {
	pod    string // empty if it was not asked
	report contract.Report
	err    error
}

func (a *access) ask(ctx context.Context, i instance) answer {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	report, err := a.report(ctx, i)
	return answer{i.pod, report, err}
}

// askAll requests the reports of many sidecars concurrently, with a timeout for each and for all. The answers are in
// the order of instances; those without a pod are not asked.
func (a *access) askAll(ctx context.Context, instances []instance) []answer {
	ctx, cancel := context.WithTimeout(ctx, askAllWithin)
	defer cancel()
	answers := make([]answer, len(instances))
	var group errgroup.Group
	group.SetLimit(askAtOnce)
	for n, i := range instances {
		if i.pod != "" {
			group.Go(func() error { answers[n] = a.ask(ctx, i); return nil })
		}
	}
	_ = group.Wait() // no function returns an error
	return answers
}

// mayNotAsk is why a sidecar was not asked that would perhaps answer.
const mayNotAsk = "you are not allowed to query it (get pods/proxy)"

// because explains briefly why a sidecar did not answer.
func because(err error) string {
	var answered apierrors.APIStatus
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "it did not answer in time"
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return mayNotAsk
	case apierrors.IsNotFound(err):
		return "there is no such pod, or no sidecar in it"
	case apierrors.IsServiceUnavailable(err), apierrors.IsInternalError(err),
		apierrors.ReasonForError(err) == metav1.StatusReasonUnknown && errors.As(err, &answered) &&
			answered.Status().Code >= http.StatusInternalServerError:
		return "the API server cannot reach it"
	default:
		return err.Error()
	}
}

func (a *access) get(ctx context.Context, key types.NamespacedName) (*cnpgv1.Cluster, error) {
	var cluster cnpgv1.Cluster
	if err := a.client.Get(ctx, key, &cluster); err != nil {
		return nil, a.failed(fmt.Sprintf("read the Cluster %q in the namespace %q", key.Name, key.Namespace), err)
	}
	return &cluster, nil
}

// cluster reads one Cluster, which must list the plugin.
func (a *access) cluster(ctx context.Context, name string) (*cnpgv1.Cluster, error) {
	key := types.NamespacedName{Namespace: a.namespace, Name: name}
	cluster, err := a.get(ctx, key)
	if err == nil && !plan.Lists(cluster) {
		return nil, notListed(key)
	}
	return cluster, err
}

func notListed(key types.NamespacedName) error {
	return fmt.Errorf("the Cluster %q in the namespace %q does not list the plugin %s", key.Name, key.Namespace,
		contract.PluginName)
}

// failed says what has failed, and how to name another resource type if it is the type, rather than the object, that
// does not exist.
func (a *access) failed(what string, err error) error {
	var answered apierrors.APIStatus
	if apierrors.IsNotFound(err) && errors.As(err, &answered) &&
		(answered.Status().Details == nil || answered.Status().Details.Name == "") {
		return fmt.Errorf("the API server knows no Clusters of %s; CUSTOM_CNPG_GROUP and CUSTOM_CNPG_VERSION name others",
			a.resource)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// choice says which clusters a command is about.
type choice struct {
	name       string // if not empty, only this one
	everywhere bool
	all        bool // also those that do not list the plugin
	selector   string
	matching   labels.Selector // by the selector; nil: any
}

// flags adds the flags that choose clusters, with what the help says of them.
func (which *choice) flags(c *cobra.Command, selector, everywhere string) {
	c.Flags().StringVarP(&which.selector, "selector", "l", "", selector)
	c.Flags().BoolVarP(&which.everywhere, "all-namespaces", "A", false, everywhere)
}

// parse parses the selector. An empty one, as of an unset shell variable, must not select everything.
func (which *choice) parse(c *cobra.Command) (err error) {
	which.matching, err = labels.Parse(which.selector)
	if err != nil || c.Flags().Changed("selector") && which.matching.Empty() {
		return usage(`--selector is %q; it must be a label selector such as "team=shop"`, which.selector)
	}
	return nil
}

// in returns the namespace of the chosen clusters; empty: all.
func (a *access) in(which choice) string {
	return map[bool]string{false: a.namespace}[which.everywhere]
}

// clusters reads the chosen Clusters. One that is chosen by its name must list the plugin.
func (a *access) clusters(ctx context.Context, which choice) ([]cnpgv1.Cluster, error) {
	if which.name != "" {
		cluster, err := a.cluster(ctx, which.name)
		if err != nil {
			return nil, err
		}
		return []cnpgv1.Cluster{*cluster}, nil
	}
	var list cnpgv1.ClusterList
	options := &client.ListOptions{Namespace: a.in(which), LabelSelector: which.matching}
	if err := a.client.List(ctx, &list, options); err != nil {
		what := "list the Clusters of all namespaces"
		if !which.everywhere {
			what = fmt.Sprintf("list the Clusters of the namespace %q", a.namespace)
		}
		return nil, a.failed(what, err)
	}
	return slices.DeleteFunc(list.Items, func(c cnpgv1.Cluster) bool { return !which.all && !plan.Lists(&c) }), nil
}

// look reads the chosen clusters. If their pods cannot be read because of a problem, they are unknown.
func (a *access) look(ctx context.Context, which choice, now time.Time) (all []seen, problem, err error) {
	clusters, err := a.clusters(ctx, which)
	if err != nil {
		return nil, nil, err
	}
	pods, problem := a.pods(ctx, a.in(which), which.name)
	of := map[types.NamespacedName][]corev1.Pod{}
	for i := range pods {
		key := types.NamespacedName{Namespace: pods[i].Namespace, Name: pods[i].Labels[endpointslice.LabelCluster]}
		of[key] = append(of[key], pods[i])
	}
	schedules, unscheduled := a.schedules(ctx, a.in(which), clusters)
	for i := range clusters {
		s := see(&clusters[i], of[client.ObjectKeyFromObject(&clusters[i])], problem == nil, now)
		s.schedules, s.unscheduled = schedules, unscheduled
		all = append(all, s)
	}
	return all, problem, nil
}

// pods reads the instances' pods; an empty cluster means all clusters, an empty namespace all namespaces.
func (a *access) pods(ctx context.Context, namespace, cluster string) ([]corev1.Pod, error) {
	labels := client.MatchingLabels{endpointslice.LabelPodRole: "instance"}
	if cluster != "" {
		labels[endpointslice.LabelCluster] = cluster
	}
	var list corev1.PodList
	if err := a.client.List(ctx, &list, client.InNamespace(namespace), labels); err != nil {
		return nil, fmt.Errorf("list the instances' pods: %w", err)
	}
	return list.Items, nil
}

// schedules reads the ScheduledBackups of a namespace if they wake one of the clusters; an empty namespace means all.
func (a *access) schedules(
	ctx context.Context, namespace string, clusters []cnpgv1.Cluster,
) ([]cnpgv1.ScheduledBackup, error) {
	var list cnpgv1.ScheduledBackupList
	wakes := func(c cnpgv1.Cluster) bool {
		return strings.Contains(contract.Effective(c.Annotations)[contract.AnnotationWake], contract.WakeOnBackup)
	}
	if !slices.ContainsFunc(clusters, wakes) {
		return nil, nil
	}
	if err := a.client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("cannot list the ScheduledBackups: %w", err)
	}
	return list.Items, nil
}

// annotate sets annotations of a Cluster, and removes those with a nil value, with the resourceVersion as precondition.
// It uses another field manager than the plugin, so that hibernation does not become the plugin's.
func (a *access) annotate(ctx context.Context, cluster *cnpgv1.Cluster, annotations map[string]*string) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": cluster.ResourceVersion, "annotations": annotations},
	})
	if err != nil {
		return fmt.Errorf("encode the patch of the Cluster %q: %w", cluster.Name, err)
	}
	target := &cnpgv1.Cluster{}
	target.Namespace, target.Name = cluster.Namespace, cluster.Name
	if err := a.client.Patch(ctx, target, client.RawPatch(types.MergePatchType, body), client.FieldOwner(fieldManager)); err != nil {
		return fmt.Errorf("patch the Cluster %q in the namespace %q: %w", cluster.Name, cluster.Namespace, err)
	}
	return nil
}

// change reads a Cluster and sets the annotations that decide returns, retrying on a conflict. If decide returns none,
// nothing is changed.
func (a *access) change(ctx context.Context, name string, decide func(*cnpgv1.Cluster) map[string]*string) error {
	return retry.OnError(retry.Attempts, apierrors.IsConflict, func() error {
		cluster, err := a.cluster(ctx, name)
		if err != nil {
			return err
		}
		if annotations := decide(cluster); annotations != nil {
			return a.annotate(ctx, cluster, annotations)
		}
		return nil
	})
}
