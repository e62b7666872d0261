package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// tenantsAtOnce is how many tenants are made, or woken, at a time.
	tenantsAtOnce = 5
	// replicas is how many the manifests ask for.
	replicas = 2
	// sharedPassword is every tenant's.
	sharedPassword = "the-same-everywhere"
	// longestRest is how long a client rests at most before it comes again: long enough for its cluster to fall asleep meanwhile.
	longestRest = 10 * time.Second
	// visitsFor is for how long clients come after each restart of the gateways.
	visitsFor = 15 * time.Second
)

var errStranger = errors.New("a client reached another cluster than its own")

// tenant is a cluster whose database says which it is.
type tenant struct {
	cluster            *cnpgv1.Cluster
	database           database
	answers, strangers atomic.Int64
}

// tenants puts clusters to sleep that share a user and a password, and restarts every replica of the gateway, in turn at once
// without a grace period and one after the other with it, while clients come to the tenants again and again, to a few at a
// time. Every answer has to be the client's own cluster's.
func tenants(ctx context.Context, kube *scenario.Kubernetes, namespace string, count int) error {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "shared"}, Type: corev1.SecretTypeBasicAuth,
		StringData: map[string]string{"username": "app", "password": sharedPassword},
	}
	if err := kube.Create(ctx, secret); err != nil {
		return fmt.Errorf("create the Secret: %w", err)
	}
	all := make([]*tenant, count)
	for i := range all {
		all[i] = &tenant{cluster: newTenant(kube, namespace, fmt.Sprintf("tenant-%d", i), secret.Name)}
	}
	for few := range slices.Chunk(all, tenantsAtOnce) {
		if err := settle(ctx, kube, few); err != nil {
			return err
		}
	}
	fmt.Printf("\n%d clusters sleep that share a password\n", count)
	seen := newOutcomes()
	restarts := 0
	for few := range slices.Chunk(all, tenantsAtOnce) {
		if err := visited(ctx, kube, few, seen); err != nil {
			return err
		}
		restarts += 2
	}
	var answers, strangers int64
	for _, t := range all {
		answers, strangers = answers+t.answers.Load(), strangers+t.strangers.Load()
	}
	fmt.Printf("\n%d sleeping clusters that share a password, every gateway restarted %d times: %d answers, %d of them of another cluster\n",
		count, restarts, answers, strangers)
	seen.print()
	if strangers != 0 {
		return errStranger
	}
	return nil
}

func newTenant(kube *scenario.Kubernetes, namespace, name, secret string) *cnpgv1.Cluster {
	c := kube.NewCluster(namespace, name, 1, soon)
	c.Spec.Bootstrap = &cnpgv1.BootstrapConfiguration{InitDB: &cnpgv1.BootstrapInitDB{
		Database: "app", Owner: "app", Secret: &cnpgv1.LocalObjectReference{Name: secret},
		PostInitApplicationSQL: []string{"create table me as select '" + name + "'::text as name", "grant select on me to app"},
	}}
	return c
}

// settle makes the clusters and lets them fall asleep, which they do again whenever nobody comes.
func settle(ctx context.Context, kube *scenario.Kubernetes, few []*tenant) error {
	for _, t := range few {
		if err := kube.Create(ctx, t.cluster); err != nil {
			return fmt.Errorf("create cluster %s: %w", t.cluster.Name, err)
		}
	}
	for _, t := range few {
		if _, err := kube.AwaitCluster(ctx, t.cluster, "hibernated", 2*toHealthy, scenario.Hibernated); err != nil {
			return err
		}
		var err error
		if t.database, err = databaseWith(ctx, kube, t.cluster, "rw", sharedPassword); err != nil {
			return err
		}
	}
	return nil
}

// visited has clients come to the clusters while the gateways restart, and waits until they sleep again.
func visited(ctx context.Context, kube *scenario.Kubernetes, few []*tenant, seen *outcomes) error {
	visiting, leave := context.WithCancel(ctx)
	defer leave()
	var clients sync.WaitGroup
	for _, t := range few {
		clients.Go(func() {
			for visiting.Err() == nil {
				seen.add(t.visit(ctx))
				rest(visiting, rand.N(longestRest))
			}
		})
	}
	err := restartAndAnswer(ctx, kube, few)
	leave()
	clients.Wait()
	if err != nil {
		return err
	}
	for _, t := range few {
		if _, err := kube.AwaitCluster(ctx, t.cluster, "hibernated again", toHealthy, scenario.Hibernated); err != nil {
			return err
		}
	}
	return nil
}

// restartAndAnswer restarts the gateways in both ways, and demands after each that every cluster answers.
func restartAndAnswer(ctx context.Context, kube *scenario.Kubernetes, few []*tenant) error {
	for _, restart := range []func(context.Context, *scenario.Kubernetes) error{killGateways, endGateways} {
		if err := restart(ctx, kube); err != nil {
			return err
		}
		before := make([]int64, len(few))
		for i, t := range few {
			before[i] = t.answers.Load()
		}
		rest(ctx, visitsFor)
		for i, t := range few {
			for deadline := time.Now().Add(toHealthy); t.answers.Load() == before[i]; rest(ctx, time.Second) {
				if ctx.Err() != nil || time.Now().After(deadline) {
					return fmt.Errorf("nobody was answered by %s", t.cluster.Name)
				}
			}
		}
	}
	return nil
}

// visit asks the database who it is.
func (t *tenant) visit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, toAnswer)
	defer cancel()
	conn, err := t.database.patient(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	var name string
	if err := conn.QueryRow(ctx, "select name from me").Scan(&name); err != nil {
		return fmt.Errorf("query: %w", err)
	}
	t.answers.Add(1)
	if name != t.cluster.Name {
		t.strangers.Add(1)
		return fmt.Errorf("%w: %s instead of %s", errStranger, name, t.cluster.Name)
	}
	return nil
}

// killGateways kills every replica at once.
func killGateways(ctx context.Context, kube *scenario.Kubernetes) error {
	pods, err := gateways(ctx, kube)
	if err != nil {
		return err
	}
	for i := range pods {
		if err := kube.Delete(ctx, &pods[i], client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("kill a pod of the plugin: %w", err)
		}
	}
	return replaced(ctx, kube, pods)
}

// endGateways ends one replica after the other.
func endGateways(ctx context.Context, kube *scenario.Kubernetes) error {
	pods, err := gateways(ctx, kube)
	if err != nil {
		return err
	}
	for i := range pods {
		if err := kube.Delete(ctx, &pods[i]); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("end a pod of the plugin: %w", err)
		}
		if err := replaced(ctx, kube, pods[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

// gateways are the plugin's pods that are not being deleted.
func gateways(ctx context.Context, kube *scenario.Kubernetes) ([]corev1.Pod, error) {
	var plugin appsv1.Deployment
	if err := kube.Get(ctx, client.ObjectKey{Namespace: scenario.OperatorNamespace, Name: scenario.PluginDeployment}, &plugin); err != nil {
		return nil, fmt.Errorf("read the plugin's Deployment: %w", err)
	}
	var pods corev1.PodList
	if err := kube.List(ctx, &pods, client.InNamespace(plugin.Namespace), client.MatchingLabels(plugin.Spec.Selector.MatchLabels)); err != nil {
		return nil, fmt.Errorf("list the plugin's pods: %w", err)
	}
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return !p.DeletionTimestamp.IsZero() }), nil
}

// replaced waits until others serve in place of these pods.
func replaced(ctx context.Context, kube *scenario.Kubernetes, before []corev1.Pod) error {
	for deadline := time.Now().Add(toHealthy); ; rest(ctx, 200*time.Millisecond) {
		now, err := gateways(ctx, kube)
		if err != nil {
			return err
		}
		ready := 0
		for i := range now {
			old := slices.ContainsFunc(before, func(p corev1.Pod) bool { return p.UID == now[i].UID })
			if !old && scenario.Ready(&now[i]) {
				ready++
			}
		}
		if ready >= replicas {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("%d of %d replicas of the plugin are ready %s after a restart", ready, replicas, toHealthy)
		}
	}
}
