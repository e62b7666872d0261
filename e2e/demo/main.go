// Command demo shows the main job on a real cluster: a CloudNativePG Cluster is used, falls idle, dozes, is woken, dozes
// again, hibernates with its scheduled backup suspended, is woken, and serves again. It uses the cluster that KUBECONFIG names.
package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cnpg-i/scale-to-zero/e2e/program"
	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// When the demonstration's cluster dozes and hibernates, and the same in minutes.
const (
	dozeAfter, threshold          = 30 * time.Second, time.Minute
	dozeMinutes, thresholdMinutes = "0.5", "1"
)

// toSleep bounds the wait for sleep beyond the threshold. A sample that a busy machine does not answer starts the clock anew, and an
// attempt that it breaks off is repeated after 10, 20 and 40 s.
const toSleep = 5 * time.Minute

func main() {
	log.SetLogger(logr.Discard())
	program.Run("demo", run)
}

// show is one run of the demonstration: the timeline it prints and the objects it made.
type show struct {
	*scenario.Kubernetes
	start    time.Time
	cluster  *cnpgv1.Cluster
	schedule *cnpgv1.ScheduledBackup
}

func run(ctx context.Context) error {
	return scenario.InNamespace(ctx, "demo", func(kube *scenario.Kubernetes, namespace string) error {
		s := &show{Kubernetes: kube, start: time.Now(), cluster: kube.NewCluster(namespace, "demo", 1, thresholdMinutes)}
		s.schedule = scenario.NewScheduledBackup(s.cluster, "demo", "0 0 2 * * *")
		for _, step := range []func(context.Context) error{s.create, s.use, s.doze, s.wake, s.doze, s.fallAsleep, s.wake, s.events} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// say prints a line of the timeline.
func (s *show) say(format string, arguments ...any) {
	fmt.Printf("%6.1fs  %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, arguments...))
}

func (s *show) create(ctx context.Context) error {
	s.cluster.Annotations[scenario.DozeMinutes] = dozeMinutes
	s.say("create Cluster demo, which dozes after %s min and hibernates after %s min, and its ScheduledBackup",
		dozeMinutes, thresholdMinutes)
	if err := s.Create(ctx, s.cluster); err != nil {
		return fmt.Errorf("create the cluster: %w", err)
	}
	if err := s.Create(ctx, s.schedule); err != nil {
		return fmt.Errorf("create the schedule: %w", err)
	}
	if err := s.AwaitHealthy(ctx, s.cluster, 5*time.Minute); err != nil {
		return err
	}
	s.say("healthy; pod %s runs postgres and the sidecar", s.cluster.Status.CurrentPrimary)
	return s.StartClient(ctx, s.cluster)
}

func (s *show) use(ctx context.Context) error {
	session, err := s.Open(ctx, s.cluster, "rw")
	if err != nil {
		return err
	}
	s.say("USED    psql is connected to demo-rw")
	if err := session.Run("create table notes as select 'kept through the sleep' as note"); err != nil {
		return err
	}
	if err := scenario.Rest(ctx, dozeAfter+5*time.Second); err != nil {
		return err
	}
	s.say("USED    the session has been open for longer than %s: the cluster stays awake", dozeAfter)
	_, _ = session.Close()
	s.say("IDLE    psql has disconnected; the clock runs")
	return nil
}

func (s *show) doze(ctx context.Context) error {
	if _, err := s.AwaitCluster(ctx, s.cluster, "dozing", dozeAfter+toSleep, scenario.Dozing); err != nil {
		return err
	}
	s.say("DOZING  PostgreSQL is stopped, and pod %s is kept", s.cluster.Status.CurrentPrimary)
	return nil
}

func (s *show) fallAsleep(ctx context.Context) error {
	if _, err := s.AwaitCluster(ctx, s.cluster, "asleep", threshold+toSleep, scenario.HibernationOn); err != nil {
		return err
	}
	s.say("ASLEEP  the sidecar has turned cnpg.io/hibernation on")
	if _, err := s.AwaitCluster(ctx, s.cluster, "hibernated", time.Minute, scenario.Hibernated); err != nil {
		return err
	}
	if err := s.Get(ctx, client.ObjectKeyFromObject(s.schedule), s.schedule); err != nil {
		return fmt.Errorf("read the schedule: %w", err)
	}
	s.say("ASLEEP  the operator has deleted the pod; ScheduledBackup suspended: %t", s.suspended())
	return nil
}

func (s *show) wake(ctx context.Context) error {
	s.say("WAKE    psql connects to demo-rw")
	began := time.Now()
	note, err := s.QueryAs(ctx, s.cluster, "rw", "connect_timeout=120", "select note from notes")
	if err != nil {
		return err
	}
	s.say("AWAKE   after %.1f s, the start of psql included, it reads: %s", time.Since(began).Seconds(), note)
	if err := s.AwaitHealthy(ctx, s.cluster, 5*time.Minute); err != nil {
		return err
	}
	_, err = scenario.Await(ctx, s.Kubernetes, s.schedule, "resumed", time.Minute, func(b *cnpgv1.ScheduledBackup) bool {
		return !ptr.Deref(b.Spec.Suspend, false)
	})
	if err != nil {
		return err
	}
	s.say("AWAKE   ScheduledBackup suspended: %t", s.suspended())
	return nil
}

func (s *show) events(ctx context.Context) error {
	var events corev1.EventList
	if err := s.List(ctx, &events, client.InNamespace(s.cluster.Namespace)); err != nil {
		return fmt.Errorf("list the Events: %w", err)
	}
	fmt.Println("\nEvents about the Cluster, from the parts of this project:")
	for _, event := range events.Items {
		if event.InvolvedObject.Kind == "Cluster" && strings.Contains(event.Source.Component+event.ReportingController, "scale-to-zero") {
			fmt.Printf("  %-20s %s\n", event.Reason, event.Message)
		}
	}
	return nil
}

func (s *show) suspended() bool { return ptr.Deref(s.schedule.Spec.Suspend, false) }
