package command

import (
	"strconv"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/clusterstate"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// kept is the output of keep-awake and release.
type kept struct {
	result
	// Until is when keep-awake ends; absent if it is off.
	Until time.Time `json:"until,omitzero"`
}

func (p *program) keepAwakeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "keep-awake CLUSTER DURATION", Short: "Keep a cluster awake for a time such as 2h, at most 168h",
		Long: `Keep a cluster awake for a time such as 2h, 90m or 2d, at most 168h, from now on. If a later time is set already, it
stays. This does not wake a cluster that sleeps.`,
		Args: exactly("CLUSTER", "DURATION"), ValidArgsFunction: p.complete(choice{}),
		RunE: func(c *cobra.Command, arguments []string) error {
			length, err := parseDays(arguments[1])
			if err != nil || length <= 0 || length > contract.MaxKeepAwake {
				return usage(
					`the duration is %q; it must be more than 0s and at most 168h, such as "90m", "1h30m" or "2d"`, arguments[1])
			}
			return p.keep(c, arguments[0], func(cluster *cnpgv1.Cluster, now time.Time) (until time.Time, change bool) {
				until = now.Add(min(length, contract.LongestKeepAwake)).UTC().Truncate(time.Second)
				if policy, _ := idle.ParsePolicy(cluster.Annotations, now); policy.KeepAwakeUntil.After(until) {
					return policy.KeepAwakeUntil.UTC(), false
				}
				return until, true
			})
		},
	}
}

func (p *program) releaseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "release CLUSTER", Short: "Cancel keep-awake, regardless of who set it",
		Args: exactly("CLUSTER"), ValidArgsFunction: p.complete(choice{}),
		RunE: func(c *cobra.Command, arguments []string) error {
			return p.keep(c, arguments[0], func(cluster *cnpgv1.Cluster, _ time.Time) (time.Time, bool) {
				_, there := cluster.Annotations[contract.AnnotationKeepAwakeUntil]
				return time.Time{}, there
			})
		},
	}
}

// parseDays parses a duration, also one in days.
func parseDays(value string) (time.Duration, error) {
	days, ok := strings.CutSuffix(value, "d")
	if !ok {
		return time.ParseDuration(value)
	}
	number, err := strconv.ParseUint(days, 10, 16)
	return time.Duration(number) * day, err // 16 bits of days fit
}

// keep sets the time until which the cluster is kept awake, as returned by decide.
func (p *program) keep(
	c *cobra.Command, name string, decide func(*cnpgv1.Cluster, time.Time) (until time.Time, change bool),
) error {
	a, err := p.connect()
	if err != nil {
		return err
	}
	var answer kept
	sleeps := false
	err = a.change(c.Context(), name, func(cluster *cnpgv1.Cluster) map[string]*string {
		now := time.Now()
		until, change := decide(cluster, now)
		changes := map[string]*string{}
		if change {
			var value *string
			delete(cluster.Annotations, contract.AnnotationKeepAwakeUntil)
			if !until.IsZero() {
				value = new(until.Format(time.RFC3339))
				metav1.SetMetaDataAnnotation(&cluster.ObjectMeta, contract.AnnotationKeepAwakeUntil, *value)
			}
			changes[contract.AnnotationKeepAwakeUntil] = value
		}
		if _, requested := cluster.Annotations[contract.AnnotationSleepRequested]; requested && !until.IsZero() {
			changes[contract.AnnotationSleepRequested] = nil
		}
		s := see(cluster, nil, false, now) // the state after the patch: the value replaced may have been invalid
		sleeps = s.View.HibernationOn || s.View.Dozing
		answer = kept{s.result(now), until}
		if len(changes) == 0 {
			return nil
		}
		return changes
	})
	if err != nil {
		return err
	}
	switch {
	case sleeps:
		p.say("It stays %s. To wake it: %s wake -n %s %s", answer.State, called, answer.Namespace, answer.Cluster)
	case answer.State == clusterstate.Observed:
		p.say("It is only observed: nothing puts it to sleep.")
	case answer.State == clusterstate.Disabled:
		p.say("Scale to zero is off for it: nothing puts it to sleep.")
	}
	if answer.Until.IsZero() {
		return p.write(answer, answer.says("has no keep-awake time"))
	}
	return p.write(answer, answer.says("is kept awake until "+answer.Until.Format(time.RFC3339)))
}
