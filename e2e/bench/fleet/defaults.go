package main

import (
	"context"
	"fmt"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// defaults gives every namespace a default, and prints how soon all clusters have it.
func (f *fleet) defaults(ctx context.Context) error {
	began := time.Now()
	for i := range min(f.namespaces, f.clusters) {
		namespace := &corev1.Namespace{ObjectMeta: named("", f.cluster(i).Namespace)}
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"45"}}}`, scenario.InactivityMinutes))
		if err := f.admin.Patch(ctx, namespace, patch); err != nil {
			return fmt.Errorf("annotate a namespace: %w", err)
		}
	}
	err := until(ctx, "the clusters have the defaults of their namespaces", armWithin, 250*time.Millisecond, func() (bool, error) {
		var clusters cnpgv1.ClusterList
		if err := f.admin.List(ctx, &clusters); err != nil {
			return false, fmt.Errorf("list the clusters: %w", err)
		}
		for i := range clusters.Items {
			if clusters.Items[i].Annotations[scenario.Defaults] == "" {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	took := time.Since(began)
	asked, err := f.requests(began)
	row(fmt.Sprintf("annotations of %d namespaces: until all clusters had them (s)", min(f.namespaces, f.clusters)), "%.1f", took.Seconds())
	row("... its requests", "%s", summary(asked))
	return err
}
