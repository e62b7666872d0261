package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// fieldOwner is not the sidecars' field manager, by whose entries they recognise what they have set.
const fieldOwner = contract.FieldManager + "-defaults"

// repeated is how often the Event is written while a Namespace has an invalid annotation: the API server forgets it
// after an hour.
const repeated = time.Hour

// patchedAtOnce is how many Clusters are patched concurrently when a Namespace has changed.
const patchedAtOnce = 8

// keep keeps of a Namespace the annotations of this project.
func keep(object any) (any, error) {
	namespace, ok := object.(*corev1.Namespace)
	if !ok {
		return object, nil // a tombstone of a missed deletion
	}
	kept := &corev1.Namespace{}
	kept.Name, kept.UID, kept.ResourceVersion = namespace.Name, namespace.UID, namespace.ResourceVersion
	for key, value := range namespace.Annotations {
		if strings.HasPrefix(key, contract.Prefix) {
			if kept.Annotations == nil {
				kept.Annotations = map[string]string{}
			}
			kept.Annotations[key] = value
		}
	}
	return kept, nil
}

// setUpDefaults watches Clusters and Namespaces.
func setUpDefaults(manager ctrl.Manager, recorder record.EventRecorder) error {
	clusters := &clusters{manager.GetClient(), manager.GetAPIReader()}
	annotated := builder.WithPredicates(predicate.AnnotationChangedPredicate{})
	changed := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))
	err := ctrl.NewControllerManagedBy(manager).Named("defaults").For(&cnpgv1.Cluster{}, changed).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(clusters.in), annotated).
		WithOptions(controller.Options{MaxConcurrentReconciles: patchedAtOnce}).
		Complete(clusters)
	if err == nil {
		err = ctrl.NewControllerManagedBy(manager).Named("invalid-defaults").For(&corev1.Namespace{}, annotated).
			Complete(&namespaces{manager.GetClient(), recorder})
	}
	if err != nil {
		return fmt.Errorf("set up the controllers of defaults: %w", err)
	}
	return nil
}

// clusters copies a Namespace's annotations, which are defaults for its Clusters, to an annotation of each that lists
// the plugin. The sidecar, which may not read Namespaces, reads them there, and contract.Effective says what is in
// force.
type clusters struct {
	client.Client
	// live reads what the informers may not know yet: a replica whose informers are late must not undo what others write.
	live client.Reader
}

// in returns the Clusters of a Namespace.
func (c *clusters) in(ctx context.Context, namespace client.Object) []reconcile.Request {
	var list cnpgv1.ClusterList
	if err := c.List(ctx, &list, client.InNamespace(namespace.GetName()), client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot list the Clusters of the Namespace", "namespace", namespace.GetName())
		return nil
	}
	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// Reconcile copies the defaults to the Cluster. Where one of them is invalid, the Cluster keeps those that it has.
func (c *clusters) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var cluster cnpgv1.Cluster
	if err := c.Get(ctx, request.NamespacedName, &cluster); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	have, there := cluster.Annotations[contract.AnnotationDefaults]
	var want string
	for _, reader := range []client.Reader{c.Client, c.live} {
		defaults, valid, err := defaultsFor(ctx, reader, &cluster)
		if err != nil || !valid || have == defaults && there == (defaults != "") {
			return ctrl.Result{}, client.IgnoreNotFound(err) // the informers will deliver a Namespace that they do not know yet
		}
		want = defaults
	}
	var value *string // nil removes the annotation; every replica writes the same
	if want != "" {
		value = &want
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{contract.AnnotationDefaults: value}}})
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("encode the patch of the defaults: %w", err)
	}
	target := &cnpgv1.Cluster{} // what the informers keep is shared, and the answer is decoded into the target
	target.Namespace, target.Name = cluster.Namespace, cluster.Name
	if err := c.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldOwner)); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("copy the defaults of the Namespace to Cluster %s: %w", cluster.Name, err)
	}
	return ctrl.Result{}, nil
}

// defaultsFor returns the encoded annotations of the Cluster's Namespace, if they are valid; none for a Cluster that
// does not list the plugin.
func defaultsFor(ctx context.Context, reader client.Reader, cluster *cnpgv1.Cluster) (encoded string, valid bool, err error) {
	if !plan.Lists(cluster) {
		return "", true, nil
	}
	var namespace corev1.Namespace
	if err := reader.Get(ctx, types.NamespacedName{Name: cluster.Namespace}, &namespace); err != nil {
		return "", false, fmt.Errorf("read Namespace %s: %w", cluster.Namespace, err)
	}
	defaults, problems := idle.ParseDefaults(namespace.Annotations, time.Now())
	if len(problems) != 0 {
		return "", false, nil
	}
	encoded, err = contract.EncodeDefaults(defaults)
	return encoded, err == nil, err
}

// namespaces says on a Namespace what is invalid there.
type namespaces struct {
	client.Client
	recorder record.EventRecorder
}

// Reconcile writes an Event if the Namespace has an invalid annotation.
func (n *namespaces) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var namespace corev1.Namespace
	if err := n.Get(ctx, request.NamespacedName, &namespace); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if _, problems := idle.ParseDefaults(namespace.Annotations, time.Now()); len(problems) != 0 {
		// Users of the Namespace may not see the Events of objects without a namespace, which are in the namespace default.
		here := &corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: namespace.Name, Namespace: namespace.Name, UID: namespace.UID}
		n.recorder.Eventf(here, corev1.EventTypeWarning, "InvalidDefaults",
			"The Clusters of this Namespace keep their current defaults, because an annotation is invalid: %s", problems[0])
		return ctrl.Result{RequeueAfter: repeated}, nil
	}
	return ctrl.Result{}, nil
}
