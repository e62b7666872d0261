package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// perNamespace is how many clusters of a fleet share a namespace.
	perNamespace = 100
	// writers is how many objects of a fleet are created at once, and probers how many Services are probed at once.
	writers, probers = 16, 32
	// toPass is how long a pass over all Services takes at least: the probes share the machine with what they probe.
	toPass = 10 * time.Second
	// probeWithin is how long a Service may take to answer: a lost SYN is sent again after 1 and 3 s.
	probeWithin = 5 * time.Second
	// toLeadFleet bounds every wait for all clusters of a fleet.
	toLeadFleet = 10 * time.Minute
	// ledEach is how many Services of a cluster with one instance lead to the gateway: -rw and -r.
	ledEach = 2
)

// A rollout of the plugin refuses no client of 2,000 sleeping clusters: every Service is probed through its ClusterIP before, during
// and after it. This test replaces the plugin's pods and so does not run beside others.
func TestRollout_refusesNobodyOfAFleet(t *testing.T) {
	whole(t)
	if !soaking {
		t.Skip("a fleet takes minutes: make soak")
	}
	s := alone(t)
	s.unlimitOperator()
	count, replicas := repeats(t, "FLEET", 2000), s.replicas()
	addresses := s.fleetAsleep(count)
	began := time.Now()
	s.awaitLed(count*ledEach, replicas)
	t.Logf("%d replicas led the clients of %d clusters %.0fs after the last of these had been created", len(replicas), count, time.Since(began).Seconds())
	p := &fleetProbe{addresses: addresses}
	for deadline := time.Now().Add(toLeadFleet); ; { // the kube-proxy follows
		refused := p.pass(s.ctx)
		if len(refused) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d Services do not lead to the gateway, the first: %v", len(refused), refused[0])
		}
	}

	*p = fleetProbe{addresses: addresses}
	stop := p.throughout(s.ctx)
	p.awaitPasses(s.story, 1)
	began = time.Now()
	patch := []byte(`{"spec":{"template":{"metadata":{"annotations":{"example.org/restarted":"` + began.Format(time.RFC3339Nano) + `"}}}}}`)
	s.must(kube.Patch(s.ctx, s.plugin(), client.RawPatch(types.MergePatchType, patch)))
	s.must(kube.AwaitDeployment(s.ctx, scenario.OperatorNamespace, scenario.PluginDeployment, toLeadFleet))
	ready := time.Since(began)
	for i := range replicas {
		s.must(kube.AwaitGone(s.ctx, &corev1.PodList{}, replicas[i].Namespace, replicas[i].Name, toLeadFleet))
	}
	ended := time.Since(began)
	s.awaitLed(count*ledEach, s.replicas())
	p.awaitPasses(s.story, p.passes.Load()+2) // the one that was under way, and one that began after the rollout
	refused := stop()
	t.Logf("the rollout took %.0fs, and the last old replica ended after %.0fs; %d probes of %d Services meanwhile, %d of them without an answer; p50 %s, p99 %s, the longest %s",
		ready.Seconds(), ended.Seconds(), p.count.Load(), len(addresses), len(refused), p.took(50), p.took(99), p.took(100))
	for i, err := range refused {
		if i < 20 {
			t.Error(err)
		}
	}
	if len(refused) != 0 {
		t.Errorf("%d probes were refused", len(refused))
	}
}

// unlimitOperator takes the limits of its resources from the operator until the test ends: it needs minutes to admit a fleet with the
// tenth of a core that its manifest gives it, and more memory.
func (s *disturber) unlimitOperator() {
	s.Helper()
	before := s.deployment(operatorDeployment).Spec.Template
	s.Cleanup(func() {
		s.ctx = cleanup(s.T)
		s.setOperator(before)
	})
	unlimited := before.DeepCopy()
	unlimited.Spec.Containers[0].Resources.Limits = nil
	s.setOperator(*unlimited)
}

// fleetAsleep creates that many sleeping clusters and returns the addresses of their Services that lead to the gateway. They are
// gone when the test has ended.
func (s *story) fleetAsleep(count int) []string {
	s.Helper()
	fast := rest.CopyConfig(kube.REST)
	fast.QPS = -1
	writer, err := client.New(fast, client.Options{Scheme: kube.Scheme()})
	s.must(err)
	var namespaces []string
	s.Cleanup(func() { s.gone(namespaces) })
	for range (count + perNamespace - 1) / perNamespace {
		namespace, err := kube.Namespace(s.ctx, "fleet")
		s.must(err)
		namespaces = append(namespaces, namespace)
	}
	var mutex sync.Mutex
	var addresses []string
	group, creating := errgroup.WithContext(s.ctx)
	group.SetLimit(writers)
	for i := range count {
		group.Go(func() error {
			name := types.NamespacedName{Namespace: namespaces[i/perNamespace], Name: fmt.Sprintf("orders-%d", i)}
			services, err := scenario.CreateAsleep(creating, writer, name)
			if err != nil {
				return err
			}
			mutex.Lock()
			defer mutex.Unlock()
			for _, service := range services[:ledEach] {
				addresses = append(addresses, net.JoinHostPort(service.Spec.ClusterIP, "5432"))
			}
			return nil
		})
	}
	s.must(group.Wait())
	return addresses
}

// gone deletes the namespaces and waits until they no longer exist, so that nothing is measured during their deletion.
func (s *story) gone(namespaces []string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), toLeadFleet)
	defer cancel()
	for _, name := range namespaces {
		if err := kube.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); client.IgnoreNotFound(err) != nil {
			s.Error(err)
		}
	}
	for _, name := range namespaces {
		if err := kube.AwaitGone(ctx, &corev1.NamespaceList{}, "", name, toLeadFleet); err != nil {
			s.Error(err)
		}
	}
}

// awaitLed waits until that many Services lead to each of the replicas.
func (s *story) awaitLed(count int, replicas []corev1.Pod) {
	s.Helper()
	for deadline := time.Now().Add(toLeadFleet); ; pause(s, time.Second) {
		least := count
		for i := range replicas {
			made := metav1.PartialObjectMetadataList{}
			made.SetGroupVersionKind(discoveryv1.SchemeGroupVersion.WithKind("EndpointSliceList"))
			s.must(kube.List(s.ctx, &made, client.MatchingLabels{"scale-to-zero.cnpg-i.io/replica": string(replicas[i].UID)}))
			least = min(least, len(made.Items))
		}
		if least == count {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("%d of %d Services lead to every replica", least, count)
		}
	}
}

// fleetProbe probes the addresses.
type fleetProbe struct {
	addresses     []string
	count, passes atomic.Int64
	mutex         sync.Mutex
	times         []time.Duration
}

// throughout probes every address again and again until the function returned is called, which returns what failed.
func (p *fleetProbe) throughout(ctx context.Context) func() []error {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan []error, 1)
	go func() {
		var failed []error
		for ctx.Err() == nil {
			failed = append(failed, p.pass(ctx)...)
			p.passes.Add(1)
		}
		ended <- failed
	}()
	return func() []error { cancel(); return <-ended }
}

// awaitPasses waits until that many passes have ended.
func (p *fleetProbe) awaitPasses(s *story, passes int64) {
	s.Helper()
	for p.passes.Load() < passes {
		pause(s, time.Second)
	}
}

// pass probes every address once, evenly over toPass.
func (p *fleetProbe) pass(ctx context.Context) (failed []error) {
	var group errgroup.Group
	group.SetLimit(probers)
	pace := time.NewTicker(toPass / time.Duration(len(p.addresses)))
	defer pace.Stop()
	for _, address := range p.addresses {
		select {
		case <-ctx.Done():
			_ = group.Wait()
			return failed
		case <-pace.C:
		}
		group.Go(func() error {
			began := time.Now()
			err := encrypts(context.WithoutCancel(ctx), address)
			took := time.Since(began)
			p.count.Add(1)
			p.mutex.Lock()
			defer p.mutex.Unlock()
			p.times = append(p.times, took)
			if err != nil {
				failed = append(failed, fmt.Errorf("%s, %.2fs after %s: %w", address, took.Seconds(), began.Format("15:04:05.000"), err))
			}
			return nil
		})
	}
	_ = group.Wait()
	return failed
}

// took is how long that many per cent of the probes took at most.
func (p *fleetProbe) took(percent int) time.Duration {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	slices.Sort(p.times)
	return p.times[(len(p.times)-1)*percent/100].Round(10 * time.Microsecond)
}

// encrypts asks whether a server encrypts, which wakes nobody, and returns an error if it does not say that it does.
func encrypts(ctx context.Context, address string) error {
	dialer := net.Dialer{Timeout: probeWithin}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(probeWithin))
	if _, err := conn.Write([]byte("\x00\x00\x00\x08\x04\xd2\x16\x2f")); err != nil {
		return err
	}
	answer := make([]byte, 1)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err
	}
	if answer[0] != 'S' {
		return errors.New("the answer is " + string(answer))
	}
	return nil
}
