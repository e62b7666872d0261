package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// besideOthers compares the first query after sleep of clusters that also list a backup plugin, whose sidecar has a startup probe
// every ten seconds, with that of the cluster given, which does not: asked before this plugin, after it, and after it with a sidecar
// made anew, whose probe stays as it is. A sidecar without a startup probe shows what Kubernetes takes to start one container after
// the other. In turn, in the same run.
func besideOthers(ctx context.Context, kube *scenario.Kubernetes, alone *cnpgv1.Cluster, runs int) (err error) {
	image, err := scenario.Provided(ctx, "NEIGHBOUR_IMAGE")
	if err != nil {
		return err
	}
	named := func(name string) *cnpgv1.Cluster { return kube.NewCluster(alone.Namespace, name, 1, never) }
	rows := []struct {
		what    string
		cluster *cnpgv1.Cluster
		other   scenario.Neighbour
		times   []time.Duration
	}{
		{what: "without another plugin", cluster: alone},
		{what: "beside one without a startup probe", cluster: named("b-beside"), other: scenario.Neighbour{Unprobed: true}},
		{what: "beside one that is asked before", cluster: named("a-beside")},
		{what: "beside one that is asked after", cluster: named("y-beside")},
		{what: "beside one whose probe stays as it is", cluster: named("z-beside"), other: scenario.Neighbour{Replaces: true}},
	}
	for _, row := range rows[1:] {
		row.other.Name, row.other.Image = row.cluster.Name+"-"+alone.Namespace, image
		if err := kube.InstallNeighbour(ctx, row.other); err != nil {
			return err
		}
		defer func() {
			ctx := context.WithoutCancel(ctx)
			err = errors.Join(err, client.IgnoreNotFound(kube.Delete(ctx, row.cluster)), kube.RemoveNeighbour(ctx, row.other.Name))
		}()
		row.cluster.Spec.Plugins = append(row.cluster.Spec.Plugins, cnpgv1.PluginConfiguration{Name: row.other.Name})
		if err := begin(ctx, kube, row.cluster); err != nil {
			return err
		}
	}
	for range runs {
		for i := range rows {
			took, err := wake(ctx, kube, rows[i].cluster, true)
			if err != nil {
				return err
			}
			rows[i].times = append(rows[i].times, took)
		}
	}
	fmt.Println("\n| first query after sleep, through -rw | median (s) | least | most | ratio |\n|---|---|---|---|---|")
	for _, row := range rows {
		middle := median(row.times)
		fmt.Printf("| %s (%d runs) | %.2f | %.2f | %.2f | %.2f |\n", row.what, runs, middle.Seconds(),
			slices.Min(row.times).Seconds(), slices.Max(row.times).Seconds(), middle.Seconds()/median(rows[0].times).Seconds())
	}
	return nil
}
