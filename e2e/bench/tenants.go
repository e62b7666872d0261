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
		if t.answers.Load() == 0 {
			return fmt.Errorf("nobody was answered by %s", t.cluster.Name)
		}
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

// visited has clients come to the clusters while the gateways restart twice, and waits until they sleep again.
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
	err := restartGateways(ctx, kube)
	rest(visiting, visitsFor)
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

// restartGateways kills every replica at once, and a while later ends them one after the other.
func restartGateways(ctx context.Context, kube *scenario.Kubernetes) error {
	var plugin appsv1.Deployment
	if err := kube.Get(ctx, client.ObjectKey{Namespace: scenario.OperatorNamespace, Name: scenario.PluginDeployment}, &plugin); err != nil {
		return fmt.Errorf("read the plugin's Deployment: %w", err)
	}
	labels := client.MatchingLabels(plugin.Spec.Selector.MatchLabels)
	at := client.InNamespace(scenario.OperatorNamespace)
	if err := kube.DeleteAllOf(ctx, &corev1.Pod{}, at, labels, client.GracePeriodSeconds(0)); err != nil {
		return fmt.Errorf("kill the plugin's pods: %w", err)
	}
	if err := kube.AwaitDeployment(ctx, plugin.Namespace, plugin.Name, toHealthy); err != nil {
		return err
	}
	rest(ctx, visitsFor)
	var pods corev1.PodList
	if err := kube.List(ctx, &pods, at, labels); err != nil {
		return fmt.Errorf("list the plugin's pods: %w", err)
	}
	for i := range pods.Items {
		if err := client.IgnoreNotFound(kube.Delete(ctx, &pods.Items[i])); err != nil {
			return fmt.Errorf("end a pod of the plugin: %w", err)
		}
		if err := kube.AwaitDeployment(ctx, plugin.Namespace, plugin.Name, toHealthy); err != nil {
			return err
		}
	}
	return nil
}
