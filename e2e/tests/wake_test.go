package tests

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// toWake bounds the wait for a wake: a minute less than the gateway holds a client.
	toWake = 4 * time.Minute
	// gatewaySlices is the managed-by label value of the gateway's EndpointSlices.
	gatewaySlices = "scale-to-zero.cnpg-i.io"
	// fromAfar are the settings of a client that waits for toWake.
	fromAfar = "connect_timeout=240"
	// oneOfMany are those of a client that tries again.
	oneOfMany = "connect_timeout=60"
)

// sleeps lets the cluster fall asleep, and keeps it from doing so again.
func (s *story) sleeps(c *cnpgv1.Cluster) {
	s.Helper()
	s.annotate(c, scenario.InactivityMinutes, soon)
	s.fallsAsleep(c, "asleep")
	s.annotate(c, scenario.InactivityMinutes, never)
}

// slices counts the gateway's EndpointSlices of the cluster by Service.
func (s *story) slices(c *cnpgv1.Cluster) map[string]int {
	s.Helper()
	var list discoveryv1.EndpointSliceList
	s.must(kube.List(s.ctx, &list, client.InNamespace(c.Namespace), client.MatchingLabels{discoveryv1.LabelManagedBy: gatewaySlices}))
	found := map[string]int{}
	for _, slice := range list.Items {
		if service := slice.Labels[discoveryv1.LabelServiceName]; strings.HasPrefix(service, c.Name+"-") {
			found[service]++
		}
	}
	return found
}

// awaitSlices waits until exactly these Services have slices of the gateway.
func (s *story) awaitSlices(c *cnpgv1.Cluster, within time.Duration, services ...string) {
	s.Helper()
	for deadline := time.Now().Add(within); ; pause(s, pollEvery) {
		found := s.slices(c)
		matches := len(found) == len(services)
		for _, service := range services {
			matches = matches && found[c.Name+"-"+service] != 0
		}
		if matches {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("the gateway has EndpointSlices for %v, want %v", found, services)
		}
	}
}

// asleep checks that the cluster sleeps. Callers first wait until what must not wake it has been answered, refused or counted, or check
// the next wake with wokenSince.
func (s *story) asleep(c *cnpgv1.Cluster, why string) {
	s.Helper()
	if s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c)); !scenario.HibernationOn(c) {
		s.Fatalf("%s: woken", why)
	}
	if pods := s.instances(c); len(pods) != 0 {
		s.Fatalf("%s: there are %d instances", why, len(pods))
	}
}

// wokenSince checks that the newest wake is no older than began: nothing woke the cluster before.
func (s *story) wokenSince(c *cnpgv1.Cluster, began time.Time, why string) {
	s.Helper()
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	var woken struct{ At time.Time }
	if err := json.Unmarshal([]byte(c.Annotations[scenario.LastWake]), &woken); err != nil || woken.At.Before(began.Truncate(time.Second)) {
		s.Errorf("%s: want no wake before %s; %s is %q (%v)", why, began, scenario.LastWake, c.Annotations[scenario.LastWake], err)
	}
}

// trust writes the cluster's CA to the client's pod and returns the settings of a client that verifies everything.
func (s *story) trust(c *cnpgv1.Cluster) string {
	s.Helper()
	_, err := kube.Client(s.ctx, c.Namespace, fmt.Sprintf("cat >/tmp/%s.crt <<'END'\n%s\nEND", c.Name, s.authority(c)))
	s.must(err)
	return fmt.Sprintf("sslmode=verify-full sslrootcert=/tmp/%s.crt channel_binding=require", c.Name)
}

// A client connects to the sleeping cluster by its usual address and gets an answer; once awake, connections bypass the
// gateway.
func TestWakeOnConnect(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	schedule := scenario.NewScheduledBackup(c, "yearly", "0 0 0 1 1 *")
	s.must(kube.Create(s.ctx, schedule))
	verify := s.trust(c)
	for _, settings := range []string{verify, "sslmode=disable", "sslmode=prefer"} {
		if found := s.slices(c); len(found) != 0 {
			t.Errorf("the cluster is awake, and the gateway has EndpointSlices for %v", found)
		}
		s.sleeps(c)
		s.awaitSlices(c, toSettle, "rw", "r")
		_, err := scenario.Await(s.ctx, kube, schedule, "suspended", toSettle, suspended)
		s.must(err)

		start := time.Now()
		answer, err := kube.QueryAs(s.ctx, c, "rw", fromAfar+" "+settings, "select 'answered ' || pg_is_in_recovery()")
		s.must(err)
		t.Logf("answered after %.2fs with %s", time.Since(start).Seconds(), strings.Fields(settings)[0])
		if answer != "answered false" {
			t.Errorf("the answer is %q", answer)
		}
		s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
		if scenario.HibernationOn(c) {
			t.Error("answered, but hibernation is on")
		}
		s.tellsWho(c, s.client().Status.PodIP, settings)
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
		s.awaitSlices(c, toSettle)
		s.resumed(schedule)
		if _, err := kube.QueryAs(s.ctx, c, "rw", verify, "select 1"); err != nil {
			t.Error(err)
		}
	}
}

// authority returns the certificate of the cluster's CA.
func (s *story) authority(c *cnpgv1.Cluster) string {
	s.Helper()
	var secret corev1.Secret
	s.must(kube.Get(s.ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Status.Certificates.ServerCASecret}, &secret))
	return string(secret.Data["ca.crt"])
}

// client returns the pod of the test's client.
func (s *story) client() *corev1.Pod {
	s.Helper()
	var pod corev1.Pod
	s.must(kube.Get(s.ctx, client.ObjectKey{Namespace: s.namespace, Name: "client"}, &pod))
	return &pod
}

// tellsWho checks that the Cluster and an Event name the address of the client that woke it.
func (s *story) tellsWho(c *cnpgv1.Cluster, by, settings string) {
	s.Helper()
	told, err := kube.AwaitEventSaying(s.ctx, c, "Woken", by, toSettle)
	s.must(err)
	s.Logf("%s", told.Message)
	var woken struct{ By, User string }
	if err := json.Unmarshal([]byte(c.Annotations[scenario.LastWake]), &woken); err != nil || woken.By != by {
		s.Errorf("%s is %q (%v)", scenario.LastWake, c.Annotations[scenario.LastWake], err)
	}
	if plaintext := strings.Contains(settings, "sslmode=disable"); plaintext != (woken.User == "app") {
		s.Errorf("the user is %q with %s", woken.User, settings)
	}
}

// Replicas are woken through -ro, and the primary answers through -rw meanwhile.
func TestWakeThroughReplicas(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.borrow(2, asleep)
	s.awaitSlices(c, toSettle, "rw", "ro", "r")
	s.asleep(c, "a replica that looked for its primary until it was gone")
	start := time.Now()
	answer, err := kube.QueryAs(s.ctx, c, "ro", fromAfar, "select pg_is_in_recovery()")
	s.must(err)
	t.Logf("a replica answered after %.2fs", time.Since(start).Seconds())
	if answer != "t" {
		t.Errorf("-ro led to a server whose recovery is %q", answer)
	}
	s.wokenSince(c, start, "a replica that looked for its primary until it was gone")
	if _, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, "create temporary table written (i int)"); err != nil {
		t.Error(err)
	}
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.awaitSlices(c, toSettle)
}

// Two hundred concurrent clients cause one wake, and each is answered.
func TestManyClientsAreOneWake(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, asleep)
	script := `echo 'select 1' >/tmp/one.sql
PGPASSWORD=%s pgbench -n -c 200 -j 200 -t 1 -f /tmp/one.sql "hostaddr=%s user=app dbname=app %s" 2>&1`
	// By the address: four hundred questions at once are more than the buffer of the cluster's DNS server holds if it has to wait.
	began := time.Now()
	out, err := kube.Client(s.ctx, s.namespace, fmt.Sprintf(script, s.password(c), s.address(c, "rw"), fromAfar))
	if err != nil || !strings.Contains(out, "number of transactions actually processed: 200/200") {
		t.Fatalf("pgbench: %v: %s", err, out)
	}
	s.wokenOnce(c, began)
}

// wokenOnce waits until an Event reports a wake since began, because the plugin may write it after the answer, and checks that it is the
// only one.
func (s *story) wokenOnce(c *cnpgv1.Cluster, began time.Time) {
	s.Helper()
	for deadline := time.Now().Add(toSettle); s.wakes(c, began) == 0 && time.Now().Before(deadline); {
		pause(s, pollEvery)
	}
	if wakes := s.wakes(c, began); wakes != 1 {
		s.Errorf("%s: %d wakes, want 1", c.Name, wakes)
	}
}

// wakes counts the wakes of the cluster that Events have reported since began.
func (s *story) wakes(c *cnpgv1.Cluster, began time.Time) int {
	s.Helper()
	var events corev1.EventList
	s.must(kube.List(s.ctx, &events, client.InNamespace(s.namespace)))
	wakes := 0
	for _, event := range events.Items {
		if event.Reason == "Woken" && event.InvolvedObject.Name == c.Name && !event.LastTimestamp.Time.Before(began.Truncate(time.Second)) {
			wakes += int(max(event.Count, 1))
		}
	}
	return wakes
}

func (s *story) password(c *cnpgv1.Cluster) string {
	s.Helper()
	var secret corev1.Secret
	s.must(kube.Get(s.ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Name + "-app"}, &secret))
	return string(secret.Data["password"])
}

// Connections that are not clients wake nothing. One may take its time to say that it is a client's.
func TestWhatDoesNotWake(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, asleep)
	out, err := kube.Client(s.ctx, s.namespace, `exec 2>&1; host=`+c.Name+`-rw
for i in $(seq 20); do
	: </dev/tcp/$host/5432                                                                        # a bare connect
	printf 'GET / HTTP/1.0\r\n\r\n' >/dev/tcp/$host/5432                                          # garbage
	printf '\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01\x00\x00\x00\x02' >/dev/tcp/$host/5432 # a cancel request
	printf '\x00\x00\x00\x08\x04\xd2\x16\x2f' >/dev/tcp/$host/5432                                # TLS asked for, and gone
	printf '\x16\x03\x01\x02\x00\x01\x00\x01\xfc' >/dev/tcp/$host/5432                            # the beginning of a ClientHello
done
psql "host=$host user=streaming_replica dbname=app replication=database sslmode=disable connect_timeout=60" -c 'IDENTIFY_SYSTEM' && exit 1
exit 0`)
	s.must(err)
	if !strings.Contains(out, "FATAL") {
		t.Errorf("a replication client is not told why it is refused: %s", out)
	}
	s.asleep(c, "nobody was a client")
	opened := time.Now()
	const takes = 15 * time.Second
	const authentication = "R" // the type of the message by which PostgreSQL asks for a password
	out, err = kube.Client(s.ctx, s.namespace, fmt.Sprintf(`exec 3<>/dev/tcp/%s-rw/5432; sleep %.0f
printf '\x00\x00\x00\x1f\x00\x03\x00\x00user\x00app\x00database\x00app\x00\x00' >&3; read -r -t 240 -N 1 answer <&3; echo -n "$answer"`, c.Name, takes.Seconds()))
	if err != nil || out != authentication {
		t.Errorf("a client that took %s to say who it is was answered %q (%v)", takes, out, err)
	}
	s.wokenSince(c, opened.Add(takes), "nobody was a client before")
}

// Hibernation by a person stays: clients are refused and nothing is undone, even if we had put that cluster to sleep before.
func TestAPersonsHibernation(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	refused := func(when string) {
		s.Helper()
		s.awaitSlices(c, toSettle)
		if out, err := kube.QueryAs(s.ctx, c, "rw", "connect_timeout=10", "select 1"); err == nil {
			s.Fatalf("%s: answered %q", when, out)
		}
		for _, pod := range s.instances(c) { // which a reconciliation that saw "off" has made
			s.must(kube.AwaitGone(s.ctx, &corev1.PodList{}, pod.Namespace, pod.Name, toHibernate))
		}
		s.asleep(c, when)
	}
	s.annotate(c, scenario.Hibernation, "on")
	s.hibernated(c)
	refused("a person's hibernation")

	s.annotate(c, scenario.Hibernation, "off")
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.must(kube.AwaitReachable(s.ctx, c, "rw", toSettle))
	s.sleeps(c)
	const operator = "cnpg.io/reconciliationLoop"
	s.annotate(c, operator, "disabled") // it may see "off", and would go on waking until the cluster is healthy
	s.annotate(c, scenario.Hibernation, "off")
	s.annotate(c, scenario.Hibernation, "on")
	s.must(kube.Annotate(s.ctx, c, operator, nil))
	refused("off and on by a person after we had put it to sleep")

	s.annotate(c, scenario.Hibernation, "off")
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.must(kube.AwaitReachable(s.ctx, c, "rw", toSettle))
	s.sleeps(c)
	s.applies(c, scenario.Hibernation, "on")
	refused("applied by a person after we had put it to sleep")
}

// applies sets an annotation of the cluster like kubectl apply --server-side.
func (s *story) applies(c *cnpgv1.Cluster, key, value string) {
	s.Helper()
	declared := &unstructured.Unstructured{}
	declared.SetGroupVersionKind(cnpgv1.SchemeGroupVersion.WithKind("Cluster"))
	declared.SetNamespace(c.Namespace)
	declared.SetName(c.Name)
	declared.SetAnnotations(map[string]string{key: value})
	s.must(kube.Apply(s.ctx, client.ApplyConfigurationFromUnstructured(declared), client.FieldOwner("a-person")))
}

// Annotations take effect while the cluster sleeps.
func TestSettingsHoldAsleep(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, asleep)
	s.awaitSlices(c, toSettle, "rw", "r")
	for _, row := range []struct{ rule, key, value, back string }{
		{"wake=manual", scenario.WakeBy, "manual", "on-connect"},
		{"enabled=false", scenario.Enabled, "false", "true"},
	} {
		s.annotate(c, row.key, row.value)
		s.awaitSlices(c, toSettle)
		if _, err := kube.QueryAs(s.ctx, c, "rw", "connect_timeout=5", "select 1"); err == nil {
			t.Errorf("%s: a client was let through", row.rule)
		}
		s.asleep(c, row.rule)
		s.annotate(c, row.key, row.back)
		s.awaitSlices(c, toSettle, "rw", "r")
	}
	s.answers(c) // kube-proxy learns of the slices a little later
}

// Without a gateway, clusters that only a gateway could wake are not put to sleep.
func TestNoGatewayNoSleep(t *testing.T) {
	whole(t)
	s := disturbing(t)
	c := s.borrow(1, awake)
	d := s.turn(c)
	off := corev1.EnvVar{Name: "POD_NAME"} // the plugin then serves the operator without a gateway
	on := corev1.EnvVar{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}
	t.Cleanup(func() { s.ctx = cleanup(t); d.setEnvironment(s.plugin(), on) })
	d.setEnvironment(s.plugin(), off)
	s.othersGone() // they have a gateway
	s.annotate(c, scenario.InactivityMinutes, soon)
	_, err := kube.AwaitEventSaying(s.ctx, c, "SleepBlocked", "gateway_unavailable", toSleep) // the end of an attempt
	s.must(err)
	if s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c)); scenario.HibernationOn(c) {
		t.Error("put to sleep without a gateway")
	}
	d.setEnvironment(s.plugin(), on)
	// During the plugin's rollout the operator may be too late, so that hibernation is withdrawn once.
	_, err = kube.AwaitCluster(s.ctx, c, "asleep once there is a gateway", toSleep+toHibernate, scenario.Hibernated)
	s.must(err)
	answer, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 1")
	if err != nil || answer != "1" {
		t.Errorf("it answers %q (%v)", answer, err)
	}
}

// A plugin replica that is terminated, as by an eviction, keeps serving the clients that it holds: each is answered at its
// first attempt, even if it cannot be told to reconnect because it uses TLS. The replica cuts what is left after
// DRAIN_TIMEOUT, so a wake that takes longer is repeated.
func TestGatewayEvictedWhileClientsWait(t *testing.T) {
	s := disturbing(t)
	c := s.borrow(1, awake)
	d := s.turn(c)
	s.until(func() bool {
		s.sleeps(c)
		answered := s.twentyClients(c, oneTry)
		_, err := kube.AwaitCluster(s.ctx, c, "asked to wake", toSettle, func(c *cnpgv1.Cluster) bool { return !scenario.HibernationOn(c) })
		s.must(err)
		evicted := time.Now()
		d.endReplica(s.replicas()[0])
		err = <-answered
		took := time.Since(evicted)
		s.rolledOut()
		if took < drainTimeout {
			s.must(err)
		}
		return err == nil
	}, fmt.Sprintf("the wake took less than the %s that the replica waits", drainTimeout))
}

// A plugin replica that dies drops its clients' connections, and they succeed through the other one.
func TestGatewayKilledWhileClientsWait(t *testing.T) {
	whole(t)
	s := disturbing(t)
	c := s.borrow(1, awake)
	d := s.turn(c)
	s.sleeps(c)
	answered := d.clientsWithoutAnOperator(c)
	_, err := kube.AwaitCluster(s.ctx, c, "asked to wake", toSettle, func(c *cnpgv1.Cluster) bool { return !scenario.HibernationOn(c) })
	s.must(err)
	d.endReplica(s.replicas()[0], client.GracePeriodSeconds(0))
	d.scaleOperator(1)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.awaitSlices(c, between+toSettle)
}

// All plugin replicas die between turning hibernation off and the first instance: their successors still report who woke the
// cluster.
func TestWhoWokeItIsToldAllTheSame(t *testing.T) {
	whole(t)
	s := disturbing(t)
	c := s.borrow(1, awake)
	d := s.turn(c)
	s.sleeps(c)
	answered := d.clientsWithoutAnOperator(c)
	_, err := kube.AwaitCluster(s.ctx, c, "asked to wake", toSettle, func(c *cnpgv1.Cluster) bool { return !scenario.HibernationOn(c) })
	s.must(err)
	d.killPlugin()
	d.scaleOperator(1)
	s.must(<-answered)
	message, err := kube.AwaitEvent(s.ctx, c, "Woken", toSettle)
	s.must(err)
	if !strings.Contains(message, s.client().Status.PodIP) || !strings.Contains(message, "how long it took is unknown") {
		t.Errorf("the Event says %q", message)
	}
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.awaitSlices(c, between+toSettle)
}

// clientsWithoutAnOperator makes twenty clients retry until they are answered, after stopping the operator, so that no instance
// comes up until it is scaled up again. The returned channel receives the result.
func (s *disturber) clientsWithoutAnOperator(c *cnpgv1.Cluster) <-chan error {
	s.Helper()
	s.withoutOperator()
	return s.twentyClients(c, untilAnswered)
}

// How often a client tries, as shell code, with the settings of its connection.
const (
	oneTry        = `psql -XAtq "%s ` + fromAfar + `" -c "select 'answered'" 2>&1`
	untilAnswered = `until psql -XAtq "%s ` + oneOfMany + `" -c "select 'answered'" 2>/dev/null; do sleep 0.2; done`
)

// twentyClients makes twenty clients connect at once. They insist on TLS, because libpq otherwise retries without it. The returned
// channel receives the result.
func (s *story) twentyClients(c *cnpgv1.Cluster, tries string) <-chan error {
	s.Helper()
	ask := fmt.Sprintf(tries, fmt.Sprintf("host=%s-rw user=app dbname=app sslmode=require", c.Name))
	script := fmt.Sprintf("export PGPASSWORD=%s\nfor i in $(seq 20); do ( %s ) & done; wait", s.password(c), ask)
	answered := make(chan error, 1)
	go func() {
		out, err := kube.Client(s.ctx, s.namespace, script)
		if got := strings.Count(out, "answered"); err == nil && got != 20 {
			err = fmt.Errorf("%d of 20 clients were answered: %s", got, strings.ReplaceAll(out, "answered\n", ""))
		}
		answered <- err
	}()
	return answered
}
