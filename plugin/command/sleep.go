package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/spf13/cobra"

	"github.com/cnpg-i/scale-to-zero/plugin/clusterstate"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// requestLifetime is how long a sidecar keeps trying after it has seen a request (sidecar/idle).
const requestLifetime = 10 * time.Minute

// slept is the output of sleep.
type slept struct {
	result
	RequestedAt *time.Time `json:"requestedAt,omitempty"`
	Blockers    []blocker  `json:"blockers"`
}

func (p *program) sleepCommand() *cobra.Command {
	timeout := 2 * time.Minute // several times what a handover and the operator take
	c := &cobra.Command{
		Use: "sleep CLUSTER", Short: "Put a cluster to sleep now, if nothing is using it",
		Long: `Put a cluster to sleep now. Only the threshold is skipped: the sidecar makes all other checks, the handover to the wake gateway
included, and the cluster must have been up for five minutes (or the threshold, if that is shorter). A cluster that dozes
hibernates.

The sidecar keeps trying for ten minutes, unless keep-awake cancels the request or the cluster begins to doze.`,
		Args: exactly("CLUSTER"), ValidArgsFunction: p.complete(choice{}),
		RunE: func(c *cobra.Command, arguments []string) error {
			a, err := p.connect()
			if err != nil {
				return err
			}
			s := &sleeper{access: a, name: arguments[0], say: p.say, answer: slept{Blockers: []blocker{}}}
			problem := s.sleep(c.Context(), timeout)
			switch {
			case problem == nil:
				return p.write(s.answer, s.answer.says("is "+string(s.answer.State)))
			case errors.As(problem, new(failure)):
				return cmp.Or(p.write(s.answer, ""), problem)
			default:
				return problem
			}
		},
	}
	timeoutFlag(c, &timeout, "how long to wait for it")
	return c
}

type sleeper struct {
	*access
	name     string
	say      func(string, ...any)
	value    string    // of the annotation
	switched bool      // hibernation has been seen on
	going    bool      // the announcement has been seen
	dozing   time.Time // since when
	answer   slept
}

// sleep makes the request, waits, and cleans up.
func (s *sleeper) sleep(ctx context.Context, timeout time.Duration) error {
	cluster, err := s.cluster(ctx, s.name)
	if err != nil {
		return err
	}
	now := time.Now()
	before := see(cluster, nil, false, now)
	if s.answer.result = before.result(now); !before.View.HibernationOn {
		if err := s.ready(ctx, cluster, now); err != nil {
			return err
		}
		requested := now.UTC().Truncate(time.Second)
		if since := before.DozingSince(); since.After(requested) { // this machine's clock is behind, and the sidecar ignores a request older than the doze
			requested = since
		}
		s.value, s.answer.RequestedAt = requested.Format(time.RFC3339), &requested
		defer s.removeRequest(ctx)
		err := s.change(ctx, s.name, func(*cnpgv1.Cluster) map[string]*string {
			return map[string]*string{contract.AnnotationSleepRequested: &s.value}
		})
		if err != nil {
			return err
		}
		s.say("Sleep is requested.")
	}
	err = poll(ctx, timeout, s.look)
	switch {
	case errors.Is(errTooLong, err): // the timeout alone, without another error
		return s.late(timeout)
	case errors.Is(err, errTooLong):
		return fmt.Errorf("%w (%w)", s.late(timeout), err)
	default:
		return err
	}
}

// ready rejects requests that cannot succeed. A sidecar that does not know the request annotation would treat it as
// invalid and turn the feature off, so the sidecar is asked first; without an answer, no request is made.
func (s *sleeper) ready(ctx context.Context, cluster *cnpgv1.Cluster, now time.Time) error {
	policy, problems := idle.ParsePolicy(cluster.Annotations, now)
	if len(problems) != 0 {
		return fmt.Errorf("the Cluster %q cannot be put to sleep: %s", s.name, strings.Join(texts(problems), "; "))
	}
	if !policy.Enabled {
		whose := ""
		if slices.Contains(defaultsOf(cluster.Annotations), strings.TrimPrefix(contract.AnnotationEnabled, contract.Prefix)) {
			whose = " of the Namespace"
		}
		return fmt.Errorf("the Cluster %q cannot be put to sleep: the annotation %s%s is %q, not \"true\"", s.name,
			contract.AnnotationEnabled, whose, contract.Effective(cluster.Annotations)[contract.AnnotationEnabled])
	}
	switch view := plan.View(cluster, now); {
	case view.VolumesAtRisk:
		return fmt.Errorf("the Cluster %q is not put to sleep: %s", s.name, plan.VolumesAtRisk)
	case now.Before(policy.KeepAwakeUntil):
		return fmt.Errorf("the Cluster %q cannot be put to sleep: keep-awake-until is %s; to remove it: %s release -n %s %s",
			s.name, policy.KeepAwakeUntil.UTC().Format(time.RFC3339), called, cluster.Namespace, cluster.Name)
	case view.Dozing && policy.KeepsAwake(now):
		return fmt.Errorf("the Cluster %q dozes, and does not hibernate in a keep-awake window, nor within five minutes of a request to wake it", s.name)
	}
	primary := cluster.Status.CurrentPrimary
	if primary == "" {
		return fmt.Errorf("the Cluster %q cannot be put to sleep: it has no primary", s.name)
	}
	asked := s.ask(ctx, instance{cluster.Namespace, cluster.Name, primary})
	const otherwise = `; instead, run NOTIFY scale_to_zero, 'hibernate' in its database`
	switch {
	case asked.err != nil:
		return fmt.Errorf("cannot put the Cluster %q to sleep, because its sidecar in %s cannot be reached: %s%s",
			s.name, primary, because(asked.err), otherwise)
	case !asked.report.AcceptsSleepRequests:
		return fmt.Errorf("the sidecar in %s is older than this command and would reject the request as invalid; "+
			"the next pod gets a new one%s", primary, otherwise)
	default:
		return nil
	}
}

func (s *sleeper) look(ctx context.Context) (bool, error) {
	cluster, err := s.cluster(ctx, s.name)
	if err != nil {
		return false, err
	}
	now := time.Now()
	seen := see(cluster, nil, false, now)
	s.answer.result, s.dozing = seen.result(now), seen.DozingSince()
	switch view := seen.View; {
	case view.HibernationOn && view.Hibernated:
		s.answer.Blockers = []blocker{}
		return true, nil
	case view.HibernationOn:
		if !s.switched {
			s.switched = true
			s.say("The hibernation annotation is on; the operator stops PostgreSQL.")
		}
		return false, nil
	case s.switched:
		return true, notReached("the Cluster %q stays awake: the hibernation annotation was turned off again, by a user or because "+
			"a client connected; see kubectl describe", s.name)
	}
	if going := s.answer.State == clusterstate.Going; going != s.going && s.answer.State != clusterstate.Dozing {
		s.going = going
		s.say("%s", map[bool]string{
			true:  "The sleep is announced; the wake gateway prepares.",
			false: "The attempt was cancelled or timed out; the sidecar will retry.",
		}[going])
	}
	asked := s.ask(ctx, instance{cluster.Namespace, cluster.Name, cluster.Status.CurrentPrimary})
	if asked.err != nil {
		return false, nil // the next poll asks again; the Cluster shows the result of the request
	}
	early := func(reason string) bool { // the sidecar has not seen the request yet
		return reason == string(idle.ReasonWaiting) || reason == string(idle.ReasonDozing)
	}
	blockers := described(slices.DeleteFunc(slices.Clone(asked.report.Blockers), early))
	if slices.Equal(blockers, s.answer.Blockers) {
		return false, nil
	}
	s.answer.Blockers = blockers
	for _, b := range blockers {
		s.say("Awake, because %s (%s).", b.Description, b.Reason)
	}
	if slices.Contains(asked.report.Blockers, string(idle.ReasonInvalidAnnotation)) {
		return true, notReached("the Cluster %q stays awake: its sidecar has rejected an annotation, which also happens if the "+
			"two clocks are more than five minutes apart", s.name)
	}
	return false, nil
}

// late explains after the timeout why the cluster is still awake.
func (s *sleeper) late(timeout time.Duration) error {
	if s.switched || s.value == "" {
		return notReached("the Cluster %q is not asleep after %s, although the hibernation annotation is on: "+
			"the operator has not stopped every pod", s.name, timeout)
	}
	if s.answer.State == clusterstate.Dozing { // its sidecar reports no blockers, and keeps no request that is removed
		why := "for instance because a maintenance or failing WAL archiving keeps it from hibernating; the request is withdrawn"
		if s.dozing.After(*s.answer.RequestedAt) {
			why = "because it began to doze after the request; repeat the request"
		}
		return notReached("the Cluster %q still dozes after %s, %s", s.name, timeout, why)
	}
	var reasons []string
	for _, b := range s.answer.Blockers {
		reasons = append(reasons, b.Reason)
	}
	why := "no blocker is reported"
	if len(reasons) != 0 {
		why = "it is kept awake by " + strings.Join(reasons, ", ")
	}
	until := s.answer.RequestedAt.Add(requestLifetime).Format(time.RFC3339)
	return notReached("the Cluster %q is still awake after %s: %s; the sidecar keeps trying until %s, "+
		"unless keep-awake cancels the request or the cluster begins to doze", s.name, timeout, why, until)
}

// removeRequest removes the request. The sidecar has recorded it, and an older program would treat it as invalid.
func (s *sleeper) removeRequest(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := s.change(ctx, s.name, func(cluster *cnpgv1.Cluster) map[string]*string {
		if cluster.Annotations[contract.AnnotationSleepRequested] != s.value {
			return nil
		}
		return map[string]*string{contract.AnnotationSleepRequested: nil}
	})
	if err != nil {
		s.say("Cannot remove the annotation %s, which has no effect after five minutes: %v",
			contract.AnnotationSleepRequested, err)
	}
}
