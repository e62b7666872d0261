package tests

import (
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// PgBouncer's connection for a client counts like any other; its connection for looking up passwords does not.
func TestPooler(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := kube.NewCluster(s.namespace, "pooled", 1, never)
	// PostgreSQL waits this long for sessions to end, including PgBouncer's, before it terminates them.
	patience := int32(5)
	c.Spec.SmartShutdownTimeout = &patience
	s.running(c)
	pooler := kube.NewPooler(c, c.Name+"-pooler")
	s.must(kube.Create(s.ctx, pooler))
	s.must(kube.AwaitReachable(s.ctx, c, "pooler", toHealthy))

	session := s.open(c, "pooler")
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.awake(c, threshold, "active", "a client of the pooler")
	// PgBouncer closes the connection of a client that leaves within a transaction, and keeps the one for passwords.
	s.must(session.Run("begin"))
	if users := s.poolerSessions(c); users != "app,cnpg_pooler_pgbouncer" {
		t.Fatalf("PgBouncer is connected as %q, want app and cnpg_pooler_pgbouncer", users)
	}
	before, after := session.Close()
	s.asleepOnTime(c, before, after, threshold)

	s.annotate(c, scenario.InactivityMinutes, never)
	s.wake(c)
	s.must(kube.AwaitReachable(s.ctx, c, "pooler", toHealthy))
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.awake(c, threshold, "active", "an unused connection that the pooler keeps")
	const idle = 5 * time.Second
	s.setPoolerParameter(pooler, "server_idle_timeout", "5")
	s.must(kube.AwaitReachable(s.ctx, c, "pooler", toHealthy))
	session = s.open(c, "pooler")
	before, after = session.Close()
	s.asleepOnTime(c, before, after.Add(idle), threshold)
	if err := kube.Get(s.ctx, client.ObjectKeyFromObject(pooler), pooler); err != nil {
		t.Errorf("the pooler is gone: %v", err)
	}
}

// A client of a Pooler wakes the cluster and is answered: PgBouncer waits on its own connection, and the client waits for
// PgBouncer, which retries after server_login_retry if it times out before PostgreSQL has started.
func TestPoolerWakes(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "behind", 1, never))
	pooler := kube.NewPooler(c, c.Name+"-pooler")
	s.must(kube.Create(s.ctx, pooler))
	s.must(kube.AwaitReachable(s.ctx, c, "pooler", toHealthy))
	for _, row := range []struct{ rule, parameter, value string }{
		{"PgBouncer's defaults", "server_idle_timeout", "1"},
		{"a PgBouncer that gives up sooner", "server_connect_timeout", "1"},
	} {
		s.setPoolerParameter(pooler, row.parameter, row.value)
		s.must(kube.AwaitReachable(s.ctx, c, "pooler", toHealthy))
		s.sleeps(c)
		s.asleep(c, "a pooler without clients")
		start := time.Now()
		answer, tries, err := s.askPooler(c, "pooler")
		t.Logf("%s: %q after %.2fs, at try %d", row.rule, answer, time.Since(start).Seconds(), tries)
		if err != nil || answer != "false" {
			t.Errorf("%s: %q (%v)", row.rule, answer, err)
		}
		s.wokenSince(c, start, "a pooler without clients")
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	}
}

// A password that was changed during the sleep is the one that the first client may use, directly and through a Pooler.
func TestWake_aPasswordThatWasChangedMeanwhile(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := kube.NewCluster(s.namespace, "rotated", 1, never)
	s.running(c)
	pooler := kube.NewPooler(c, c.Name+"-pooler")
	pooler.Spec.PgBouncer.Parameters = map[string]string{"server_idle_timeout": "1"}
	s.must(kube.Create(s.ctx, pooler))
	s.must(kube.AwaitReachable(s.ctx, c, "pooler", toHealthy))
	for _, service := range []string{"rw", "pooler"} {
		s.sleeps(c)
		s.rotates(c)
		start := time.Now()
		answer, err := kube.QueryAs(s.ctx, c, service, fromAfar, "select 'answered'")
		t.Logf("%s: %q after %.2fs", service, answer, time.Since(start).Seconds())
		if err != nil || answer != "answered" {
			t.Errorf("through %s the first client with the new password got %q (%v)", service, answer, err)
		}
		s.awakeAgain(c)
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	}
}

// A cluster whose password is changed while it dozes hibernates, so that the first client with the new password is answered: after a
// doze the instance manager would set it 20 s later.
func TestDoze_hibernatesForAChangedPassword(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.dozingCluster("changed")
	s.dozes(c)
	s.rotates(c)
	s.fallsAsleep(c, "asleep for the new password")
	message, err := kube.AwaitEvent(s.ctx, c, "HibernationRequested", toSettle)
	s.must(err)
	if !strings.Contains(message, "a password has changed") {
		t.Errorf("the Event says %q", message)
	}
	start := time.Now()
	answer, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 'answered'")
	t.Logf("%q after %.2fs", answer, time.Since(start).Seconds())
	if err != nil || answer != "answered" {
		t.Errorf("the first client with the new password got %q (%v)", answer, err)
	}
	s.awakeAgain(c)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
}

// rotates changes the application's password, and waits until the operator knows.
func (s *story) rotates(c *cnpgv1.Cluster) {
	s.Helper()
	var secret corev1.Secret
	s.must(kube.Get(s.ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Name + "-app"}, &secret))
	secret.Data["password"] = append(secret.Data["password"], 'x')
	s.must(kube.Update(s.ctx, &secret))
	_, err := kube.AwaitCluster(s.ctx, c, "told of the new Secret", toSettle, func(c *cnpgv1.Cluster) bool {
		return c.Status.SecretsResourceVersion.ApplicationSecretVersion == secret.ResourceVersion
	})
	s.must(err)
}

// askPooler asks through a Service whether a standby answers, again if PgBouncer logged in too early.
func (s *story) askPooler(c *cnpgv1.Cluster, service string) (answer string, tries int, err error) {
	s.Helper()
	for deadline := time.Now().Add(toSettle); ; pause(s, pollEvery) {
		answer, err = kube.QueryAs(s.ctx, c, service, fromAfar, "select pg_is_in_recovery()::text")
		if tries++; !salted(err) || time.Now().After(deadline) {
			return answer, tries, err
		}
	}
}

// salted reports whether PgBouncer logged in with a password hash that the operator's instance manager then replaced with
// another salt. The instance manager does so at each start of an instance (1.30: internal/management/controller,
// reconcileUser), up to a second after the first clients of a wake. Clients that retry within PgBouncer's server_login_retry, 15 s,
// get the same message.
func salted(err error) bool {
	return err != nil && strings.Contains(err.Error(), `password authentication failed for user "app"`)
}

// poolerSessions lists the users of PgBouncer's connections, queried as the superuser over the socket.
func (s *story) poolerSessions(c *cnpgv1.Cluster) string {
	s.Helper()
	out, err := kube.Exec(s.ctx, c.Namespace, c.Status.CurrentPrimary, "postgres", "psql", "-XAtq", "-U", "postgres", "postgres", "-c",
		`select string_agg(distinct usename, ',' order by usename) from pg_stat_activity where client_addr is not null`)
	s.must(err)
	return out[:max(len(out)-1, 0)]
}

func (s *story) setPoolerParameter(pooler *cnpgv1.Pooler, name, value string) {
	s.Helper()
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(pooler), pooler))
	changed := pooler.DeepCopy()
	if changed.Spec.PgBouncer.Parameters == nil {
		changed.Spec.PgBouncer.Parameters = map[string]string{}
	}
	changed.Spec.PgBouncer.Parameters[name] = value
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(pooler)))
}
