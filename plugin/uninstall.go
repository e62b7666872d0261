package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// checkUninstall reports whether the plugin can be removed: no Cluster lists it, because the operator would no longer
// reconcile that Cluster; this project leaves no Cluster fenced, no Pooler scaled to zero and no ScheduledBackup
// suspended, because nothing else reverts that; and none of its EndpointSlices, Roles and RoleBindings is left.
func checkUninstall(ctx context.Context, arguments []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("check-uninstall", flag.ContinueOnError)
	flags.SetOutput(stderr)
	group := flags.String("group", cmp.Or(os.Getenv(contract.EnvCNPGGroup), contract.DefaultCNPGGroup), "API group of the Cluster resource")
	version := flags.String("version", cmp.Or(os.Getenv(contract.EnvCNPGVersion), contract.DefaultCNPGVersion), "API version of the Cluster resource")
	within := flags.Duration("within", time.Minute, "how long to wait until the plugin has removed the objects that it created")
	if err := flags.Parse(arguments); err != nil {
		return fmt.Errorf("read the flags: %w", err)
	}
	if flags.NArg() != 0 {
		return fmt.Errorf("argument %q is invalid: all settings are flags", flags.Arg(0))
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	reader, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if err := awaitRemovable(ctx, reader, schema.GroupVersion{Group: *group, Version: *version}, *within); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(stdout, "no Cluster lists the plugin: it can be removed")
	return nil
}

const (
	// listed is the page size for listing Clusters, Poolers and ScheduledBackups, named how many of them an error names.
	listed, named = 200, 10
	// pollEvery is the polling interval while the plugin removes its objects.
	pollEvery = time.Second
)

// inUseError means that Clusters list the plugin.
type inUseError struct{ Clusters []string }

func (e *inUseError) Error() string {
	names := e.Clusters
	if more := len(names) - named; more > 0 {
		names = append(append([]string{}, names[:named]...), fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("%d Clusters list the plugin, and without it the operator does not reconcile them, failover included: %s; "+
		"remove the plugin from spec.plugins of each first", len(e.Clusters), strings.Join(names, ", "))
}

// awaitRemovable returns nil if no Cluster lists the plugin and the plugin has removed its objects for those that did,
// for which it waits up to within. clusters is the group and version of the Cluster resource.
func awaitRemovable(
	ctx context.Context, reader client.Reader, clusters schema.GroupVersion, within time.Duration,
) error {
	users, fenced, err := listing(ctx, reader, clusters)
	if err != nil {
		return err
	}
	if len(users) != 0 {
		return &inUseError{Clusters: users}
	}
	deadline := time.Now().Add(within)
	for {
		left, err := leftovers(ctx, reader, clusters)
		if len(fenced) != 0 && err == nil { // they are listed again only if there were any
			if _, fenced, err = listing(ctx, reader, clusters); len(fenced) != 0 {
				left = "the fence of Cluster " + fenced[0]
			}
		}
		if err != nil || left == "" {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no Cluster lists the plugin, but %s is still there after %s; the plugin removes it, so check that the plugin runs", left, within)
		}
		timer := time.NewTimer(pollEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("wait until %s is removed: %w", left, ctx.Err())
		case <-timer.C:
		}
	}
}

// listing returns the Clusters that list the plugin, and those of the others that this project has fenced to doze; none
// if the operator's CRDs are missing.
func listing(
	ctx context.Context, reader client.Reader, clusters schema.GroupVersion,
) (users, fenced []string, err error) {
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(clusters.WithKind("ClusterList"))
	for next := ""; ; {
		err := reader.List(ctx, &list, client.Limit(listed), client.Continue(next))
		if meta.IsNoMatchError(err) {
			return nil, nil, nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("list Clusters: %w", err)
		}
		for i := range list.Items {
			var cluster cnpgv1.Cluster
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &cluster); err != nil {
				return nil, nil, fmt.Errorf("read Cluster %s/%s: %w", list.Items[i].GetNamespace(), list.Items[i].GetName(), err)
			}
			switch name := cluster.Namespace + "/" + cluster.Name; {
			case plan.Lists(&cluster):
				users = append(users, name)
			case contract.Dozes(cluster.Annotations, cluster.ManagedFields):
				fenced = append(fenced, name)
			}
		}
		if next = list.GetContinue(); next == "" {
			return users, fenced, nil
		}
	}
}

// leftovers names one of the objects that the plugin made for a Cluster, or marked, if any is left.
func leftovers(ctx context.Context, reader client.Reader, clusters schema.GroupVersion) (string, error) {
	for _, kind := range []struct {
		schema.GroupVersionKind
		label, value string
	}{
		{discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), discoveryv1.LabelManagedBy, endpointslice.ManagedBy},
		{rbacv1.SchemeGroupVersion.WithKind("RoleBinding"), contract.LabelManagedBy, contract.ManagedBy},
		{rbacv1.SchemeGroupVersion.WithKind("Role"), contract.LabelManagedBy, contract.ManagedBy},
	} {
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := reader.List(ctx, &list, client.Limit(1), client.MatchingLabels{kind.label: kind.value}); err != nil {
			return "", fmt.Errorf("list what the plugin made of kind %s: %w", kind.Kind, err)
		}
		if len(list.Items) != 0 {
			return fmt.Sprintf("%s %s/%s", kind.Kind, list.Items[0].Namespace, list.Items[0].Name), nil
		}
	}
	for _, kind := range []struct{ kind, mark string }{
		{"Pooler", contract.AnnotationInstances}, {"ScheduledBackup", contract.AnnotationSuspended},
	} {
		if left, err := marked(ctx, reader, clusters, kind.kind, kind.mark); err != nil || left != "" {
			return left, err
		}
	}
	return "", nil
}

// marked names the mark of an object that the plugin restores, if there is one: a Pooler that it has scaled to zero, or
// a ScheduledBackup that a sidecar has suspended. It leaves those of deleted Clusters alone.
func marked(
	ctx context.Context, reader client.Reader, clusters schema.GroupVersion, kind, mark string,
) (string, error) {
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(clusters.WithKind(kind + "List"))
	for next := ""; ; {
		if err := reader.List(ctx, &list, client.Limit(listed), client.Continue(next)); meta.IsNoMatchError(err) {
			return "", nil
		} else if err != nil {
			return "", fmt.Errorf("list the objects of kind %s: %w", kind, err)
		}
		for i := range list.Items {
			object := &list.Items[i]
			if _, is := object.GetAnnotations()[mark]; !is {
				continue
			}
			name, _, _ := unstructured.NestedString(object.Object, "spec", "cluster", "name")
			var cluster metav1.PartialObjectMetadata
			cluster.SetGroupVersionKind(clusters.WithKind("Cluster"))
			err := reader.Get(ctx, client.ObjectKey{Namespace: object.GetNamespace(), Name: name}, &cluster)
			switch {
			case apierrors.IsNotFound(err):
			case err != nil:
				return "", fmt.Errorf("read Cluster %s/%s: %w", object.GetNamespace(), name, err)
			default:
				return fmt.Sprintf("annotation %s of %s %s/%s", mark, kind, object.GetNamespace(), object.GetName()), nil
			}
		}
		if next = list.GetContinue(); next == "" {
			return "", nil
		}
	}
}
