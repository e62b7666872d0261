package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func (p *program) detachCommand() *cobra.Command {
	selector, everywhere, dryRun := "", false, false
	c := &cobra.Command{
		Use: "detach (CLUSTER | -l SELECTOR | -A)", Short: "Remove this plugin, and no other, from spec.plugins of clusters",
		Long: `Remove this plugin, and no other, from spec.plugins: of one cluster, of those that a label selector matches, or with -A of
those of all namespaces.

The operator then restarts the instances that have a sidecar: those of one cluster one after another, but those of all the
selected clusters at the same time. To spread the restarts, detach a few clusters at a time. With primaryUpdateStrategy
supervised the operator waits for you to restart the primary. A hibernated cluster stays hibernated, and connections no longer
wake it. The plugin wakes a cluster that dozes, and resumes the ScheduledBackups that were suspended for sleep.`,
		ValidArgsFunction: p.completeCluster,
		RunE: func(c *cobra.Command, arguments []string) error {
			matching, err := labels.Parse(selector)
			filtered := c.Flags().Changed("selector")
			switch {
			case err != nil || filtered && matching.Empty(): // an unset shell variable must not select every cluster
				return usage(`--selector is %q; allowed is a label selector such as "team=shop"`, selector)
			case len(arguments) > 1 || (len(arguments) == 1) == (filtered || everywhere):
				return usage("detach takes one CLUSTER, or --selector, --all-namespaces or both instead")
			}
			a, err := p.connect()
			if err != nil {
				return err
			}
			keys := []types.NamespacedName{{Namespace: a.namespace, Name: strings.Join(arguments, "")}}
			if len(arguments) == 0 {
				clusters, err := a.list(c.Context(), map[bool]string{false: a.namespace}[everywhere],
					client.MatchingLabelsSelector{Selector: matching})
				if err != nil {
					return err
				}
				keys = nil
				for i := range clusters {
					if entry(&clusters[i]) >= 0 {
						keys = append(keys, client.ObjectKeyFromObject(&clusters[i]))
					}
				}
			}
			switch {
			case len(keys) == 0:
				p.say("No Cluster that is selected lists the plugin.")
			case len(keys) > 1 && !dryRun:
				p.say("The operator restarts the instances of %d clusters at the same time.", len(keys))
			}
			answers, problems := []result{}, []error(nil)
			for _, key := range keys {
				if answer, err := a.detach(c.Context(), key, dryRun); err != nil {
					problems = append(problems, err) // the others are detached nevertheless
				} else {
					answers = append(answers, answer)
				}
			}
			problems = append(problems, p.write(map[string]any{"clusters": answers}, func(out io.Writer) {
				for i := range answers {
					writeDetached(out, &answers[i], map[bool]string{true: " (dry run)"}[dryRun])
				}
			}))
			return errors.Join(problems...)
		},
	}
	c.Flags().StringVarP(&selector, "selector", "l", "", "the clusters whose labels match, such as team=shop")
	c.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "the clusters of all namespaces")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "change nothing: the API server only checks the change")
	return c
}

// entry returns the position of the plugin in the list of a Cluster, even if it is turned off there, or -1.
func entry(cluster *cnpgv1.Cluster) int {
	return slices.IndexFunc(cluster.Spec.Plugins,
		func(p cnpgv1.PluginConfiguration) bool { return p.Name == contract.PluginName })
}

// detach removes the plugin from the list of one Cluster. The patch tests that the entry at the position is the
// plugin's, so that it fails, and is retried, if the list has been changed since it was read.
func (a *access) detach(ctx context.Context, key types.NamespacedName, dryRun bool) (answer result, err error) {
	options := &client.PatchOptions{FieldManager: fieldManager}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	// Invalid: the test has failed.
	changed := func(err error) bool { return apierrors.IsInvalid(err) || apierrors.IsConflict(err) }
	err = retry.OnError(retry.DefaultRetry, changed, func() error {
		cluster, err := a.get(ctx, key)
		if err != nil {
			return err
		}
		position := entry(cluster)
		if position < 0 {
			return notListed(key)
		}
		now := time.Now()
		answer = result{key.Namespace, key.Name, see(cluster, nil, false, now).state(now)}
		patch := fmt.Appendf(nil, `[{"op":"test","path":"/spec/plugins/%[1]d/name","value":%[2]q},{"op":"remove","path":"/spec/plugins/%[1]d"}]`, position, contract.PluginName)
		if err := a.client.Patch(ctx, cluster, client.RawPatch(types.JSONPatchType, patch), options); err != nil {
			return fmt.Errorf("remove the plugin from the Cluster %q in the namespace %q: %w", key.Name, key.Namespace, err)
		}
		return nil
	})
	return answer, err
}

// writeDetached writes what has changed, and what follows.
func writeDetached(out io.Writer, d *result, how string) {
	follows := "The operator restarts the instances that have a sidecar."
	if d.State == StateAsleep || d.State == StateAsleepByHand {
		follows = fmt.Sprintf("It stays hibernated, and connections no longer wake it. To wake it: %s wake -n %s %s",
			called, d.Namespace, d.Cluster)
	}
	_, _ = fmt.Fprintf(out, "Cluster %s/%s no longer lists the plugin%s. %s\n", d.Namespace, d.Cluster, how, follows)
}
