package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/clusterstate"
	"github.com/cnpg-i/scale-to-zero/plugin/retry"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// enrolment is what a command makes of Clusters.
type enrolment struct {
	name, done, short, long string
	// enabled is the value of the annotation; empty: it stays.
	enabled string
	// lists adds the plugin to spec.plugins, and unlists removes it.
	lists, unlists bool
}

// sequence says how the clusters are chosen, and how many of them restart at a time.
const sequence = `

Clusters are changed one after another: the next one when the instances of the one before have been restarted and are
ready. With primaryUpdateStrategy supervised the operator waits for you to restart the primary. --at-a-time changes
several at once, or with 0 all, without waiting. If the command is interrupted, the remaining clusters are not changed.`

var enrolments = []enrolment{
	{
		name: "enable", done: "is enabled",
		short: "Turn scale to zero on for clusters, and list the plugin where it is missing",
		long: `Set the annotation xata.io/scale-to-zero-enabled to "true", and add the plugin to spec.plugins of the Clusters that do
not list it: the operator restarts the instances of these, which get the sidecar.` + sequence,
		enabled: "true", lists: true,
	},
	{
		name: "observe", done: "is observed",
		short: "Count how clusters would sleep, and list the plugin where it is missing",
		long: `Set the annotation xata.io/scale-to-zero-enabled to "observe", and add the plugin to spec.plugins of the Clusters that
do not list it: the operator restarts the instances of these, which get the sidecar. Nothing is put to sleep. A cluster
that is hibernated stays so, and connections no longer wake it; a doze ends. A selector leaves out the Clusters that are
enabled: name such a cluster to observe it.` + sequence,
		enabled: contract.EnabledObserve, lists: true,
	},
	{
		name: "disable", done: "is disabled", short: "Turn scale to zero off for clusters",
		long: `Set the annotation xata.io/scale-to-zero-enabled to "false". Nothing restarts. A cluster that is hibernated
stays so, and connections no longer wake it; a doze ends.`,
		enabled: "false",
	},
	{
		name: "detach", done: "no longer lists the plugin",
		short: "Remove this plugin, and no other, from spec.plugins of clusters",
		long: `Remove this plugin, and no other, from spec.plugins: the operator restarts the instances that have a sidecar. A
hibernated cluster stays hibernated, and connections no longer wake it. The plugin wakes a cluster that dozes, and
resumes the ScheduledBackups that were suspended for sleep.` + sequence,
		unlists: true,
	},
}

// enrolled is what a command says of a cluster that it has changed, or would change.
type enrolled struct {
	result
	// Restarts says that the operator restarts instances.
	Restarts bool `json:"restarts"`
}

// What the flags that choose clusters say in the help.
const (
	describeSelector   = "the clusters whose labels match, such as team=shop"
	describeEverywhere = "the clusters of all namespaces"
)

func (p *program) enrolmentCommand(e enrolment) *cobra.Command {
	which, dryRun, atATime, timeout := choice{all: true}, false, 1, 10*time.Minute
	c := &cobra.Command{
		Use: e.name + " (CLUSTER | -l SELECTOR | -A)", Short: e.short, Long: e.long,
		ValidArgsFunction: p.complete(choice{all: e.lists}),
		RunE: func(c *cobra.Command, arguments []string) error {
			err := which.parse(c)
			switch {
			case err != nil:
				return err
			case len(arguments) > 1 || (len(arguments) == 1) == (which.selector != "" || which.everywhere):
				return usage("%s takes one CLUSTER, or --selector, --all-namespaces or both instead", e.name)
			case atATime < 0:
				return usage("--at-a-time is %d; it must be a number of clusters, or 0 for all", atATime)
			}
			a, err := p.connect()
			if err != nil {
				return err
			}
			keys := []types.NamespacedName{{Namespace: a.namespace, Name: strings.Join(arguments, "")}}
			if len(arguments) == 0 {
				clusters, err := a.clusters(c.Context(), which)
				if err != nil {
					return err
				}
				keys = nil
				for i := range clusters {
					if e.selects(&clusters[i]) {
						keys = append(keys, client.ObjectKeyFromObject(&clusters[i]))
					}
				}
			}
			if len(keys) == 0 {
				p.say("No Cluster is selected that the command could change.")
			}
			answers := []enrolled{}
			var unwritten error
			err = a.enrolAll(c.Context(), e, keys, atATime, timeout, dryRun, p.say, func(changed enrolled) {
				if answers = append(answers, changed); p.printer == nil {
					unwritten = cmp.Or(unwritten, p.write(nil, e.text(&changed, map[bool]string{true: " (dry run)"}[dryRun])))
				}
			})
			return errors.Join(err, cmp.Or(unwritten, p.write(map[string]any{"clusters": answers}, "")))
		},
	}
	flags := c.Flags()
	which.flags(c, describeSelector, describeEverywhere)
	flags.BoolVar(&dryRun, "dry-run", false, "change nothing: the API server only checks the change")
	if e.lists || e.unlists {
		flags.IntVar(&atATime, "at-a-time", 1, "how many clusters restart at the same time; 0: all")
		timeoutFlag(c, &timeout, "how long the restart of one cluster may take before the command gives up")
	}
	return c
}

// enrolAll changes the Clusters, and waits for the restarts of earlier ones before it begins too many. If one cannot be
// changed, the others are nevertheless.
func (a *access) enrolAll(
	ctx context.Context, e enrolment, keys []types.NamespacedName, atATime int, timeout time.Duration, dryRun bool,
	say func(string, ...any), done func(enrolled),
) error {
	var problems []error
	var restarting []types.NamespacedName
	for i, key := range keys {
		for atATime > 0 && len(restarting) >= atATime {
			say("Waiting until %s has been restarted: %d of %d clusters are done.", restarting[0], i-len(restarting), len(keys))
			if err := a.awaitRestart(ctx, e, restarting[0], timeout); err != nil {
				switch {
				case ctx.Err() != nil: // run prints nothing else of an error that wraps context.Canceled
					err = errInterrupted
				case len(problems) == 0 && errors.Is(errTooLong, err): // the timeout alone, without another error
					err = notReached("%v", err)
				}
				err = fmt.Errorf("wait for the restart of the Cluster %q in the namespace %q: %w (%d of %d clusters are left as they are)",
					restarting[0].Name, restarting[0].Namespace, err, len(keys)-i, len(keys))
				return errors.Join(append(problems, err)...)
			}
			restarting = restarting[1:]
		}
		answer, err := a.enrol(ctx, e, key, dryRun)
		if errors.Is(err, context.Canceled) { // which is all that would be said if it were wrapped
			return errors.Join(append(problems, errInterrupted)...)
		}
		if err != nil {
			problems = append(problems, err)
			continue
		}
		done(answer)
		if answer.Restarts && !dryRun {
			restarting = append(restarting, key)
		}
	}
	return errors.Join(problems...)
}

// selects reports whether a selector selects the Cluster for the command.
func (e enrolment) selects(cluster *cnpgv1.Cluster) bool {
	enabled := entry(cluster) >= 0 && contract.Effective(cluster.Annotations)[contract.AnnotationEnabled] == "true"
	return (e.lists || entry(cluster) >= 0) && (!enabled || e.enabled != contract.EnabledObserve)
}

// entry returns the position of the plugin in the list of a Cluster, even if it is turned off there, or -1.
func entry(cluster *cnpgv1.Cluster) int {
	return slices.IndexFunc(cluster.Spec.Plugins,
		func(p cnpgv1.PluginConfiguration) bool { return p.Name == contract.PluginName })
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// patch returns what is to be changed; nothing if the Cluster is as it should be.
func (e enrolment) patch(cluster *cnpgv1.Cluster) []operation {
	var patch []operation
	add := func(op, path string, value any) { patch = append(patch, operation{op, path, value}) }
	ours, position := map[string]string{"name": contract.PluginName}, entry(cluster)
	at := fmt.Sprintf("/spec/plugins/%d", position)
	for i, plugin := range slices.Backward(cluster.Spec.Plugins) { // it may be listed twice
		if e.unlists && plugin.Name == contract.PluginName {
			add("test", fmt.Sprintf("/spec/plugins/%d/name", i), contract.PluginName)
			add("remove", fmt.Sprintf("/spec/plugins/%d", i), nil)
		}
	}
	switch {
	case e.lists && len(cluster.Spec.Plugins) == 0:
		add("add", "/spec/plugins", []any{ours})
	case e.lists && position < 0:
		add("add", "/spec/plugins/-", ours)
	case e.lists && cluster.Spec.Plugins[position].Enabled != nil && !*cluster.Spec.Plugins[position].Enabled:
		add("test", at+"/name", contract.PluginName)
		add("replace", at+"/enabled", true)
	}
	switch annotations := cluster.Annotations; {
	case e.enabled == "" || annotations[contract.AnnotationEnabled] == e.enabled:
	case annotations == nil:
		add("add", "/metadata/annotations", map[string]string{contract.AnnotationEnabled: e.enabled})
	default:
		add("add", "/metadata/annotations/"+strings.ReplaceAll(contract.AnnotationEnabled, "/", "~1"), e.enabled)
	}
	return patch
}

// enrol changes one Cluster. The patch tests the resourceVersion that was read, and is retried if that has changed.
func (a *access) enrol(
	ctx context.Context, e enrolment, key types.NamespacedName, dryRun bool,
) (answer enrolled, err error) {
	options := &client.PatchOptions{FieldManager: fieldManager}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	// Invalid: the test has failed.
	changed := func(err error) bool { return apierrors.IsInvalid(err) || apierrors.IsConflict(err) }
	err = retry.OnError(retry.Attempts, changed, func() error {
		cluster, err := a.get(ctx, key)
		if err != nil {
			return err
		}
		if !e.lists && entry(cluster) < 0 {
			return notListed(key)
		}
		pods, problem := a.pods(ctx, key.Namespace, key.Name) // without them, the operator may restart some
		patch := e.patch(cluster)
		answer.Restarts = (e.lists || e.unlists) && (problem != nil || slices.ContainsFunc(pods, e.outdated))
		if len(patch) != 0 {
			test := operation{"test", "/metadata/resourceVersion", cluster.ResourceVersion}
			body, err := json.Marshal(append([]operation{test}, patch...))
			if err != nil {
				return fmt.Errorf("encode the patch: %w", err)
			}
			if err := a.client.Patch(ctx, cluster, client.RawPatch(types.JSONPatchType, body), options); err != nil {
				return fmt.Errorf("%s the Cluster %q in the namespace %q: %w", e.name, key.Name, key.Namespace, err)
			}
		}
		now := time.Now()
		answer.result = see(cluster, nil, false, now).result(now)
		return nil
	})
	return answer, err
}

func (e enrolment) outdated(pod corev1.Pod) bool {
	return (named(&pod.Spec, container) != nil) != e.lists
}

// awaitRestart waits until the instances have been restarted and are ready, or sleep again, or until the operator waits
// for a person to restart the primary.
func (a *access) awaitRestart(ctx context.Context, e enrolment, key types.NamespacedName, timeout time.Duration) error {
	return poll(ctx, timeout, func(ctx context.Context) (bool, error) {
		cluster, err := a.get(ctx, key)
		if err != nil {
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		}
		pods, err := a.pods(ctx, key.Namespace, key.Name)
		if err != nil {
			return false, err
		}
		outdated := slices.ContainsFunc(pods, e.outdated)
		waits := slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return !clusterstate.Ready(pod) })
		view := plan.View(cluster, time.Now())
		return cluster.Status.Phase == cnpgv1.PhaseWaitingForUser || view.HibernationOn || view.Dozing ||
			cluster.Status.Phase == cnpgv1.PhaseHealthy && !outdated && !waits && len(pods) >= cluster.Spec.Instances, nil
	})
}

// text says what has become of a cluster, and what follows.
func (e enrolment) text(d *enrolled, how string) string {
	follows := "Nothing restarts."
	switch {
	case e.enabled != "true" && (d.State == clusterstate.Asleep || d.State == clusterstate.AsleepByHand):
		follows = fmt.Sprintf("It stays hibernated, and connections no longer wake it. To wake it: %s wake -n %s %s",
			called, d.Namespace, d.Cluster)
	case d.Restarts:
		follows = "The operator restarts its instances."
	}
	return fmt.Sprintf("Cluster %s/%s %s%s. %s\n", d.Namespace, d.Cluster, e.done, how, follows)
}
