package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cloudnative-pg/cnpg-i/pkg/identity"
	"github.com/cloudnative-pg/cnpg-i/pkg/lifecycle"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// The load on the lifecycle hook: far more than an operator makes, so that what is slow shows.
const (
	hookRate  = 100 // calls a second
	hookCalls = 20 * hookRate
	// reach is how long the plugin's Service may take to accept a connection before it is taken as out of reach.
	reach = 5 * time.Second
)

// hookLatency prints how long the deployed plugin's lifecycle hook takes, called as the operator calls it: over gRPC with
// certificates of both sides, for a pod of the operator's, to create and to evaluate in turn. Before and after it, it prints the
// same of a call that does nothing: what is slow there is the machine's.
func hookLatency(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) error {
	address, config, err := pluginEndpoint(ctx, kube)
	if err != nil {
		return err
	}
	if !reachable(ctx, address) {
		fmt.Println("\nThe plugin's Service cannot be reached from here: no figures of the lifecycle hook.")
		return nil
	}
	requests, err := hookRequests(ctx, kube, c)
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		return fmt.Errorf("make a client of the plugin: %w", err)
	}
	defer func() { _ = connection.Close() }()
	plain, hook := identity.NewIdentityClient(connection), lifecycle.NewOperatorLifecycleClient(connection)
	nothing := func(ctx context.Context, _ int) error {
		_, err := plain.Probe(ctx, &identity.ProbeRequest{})
		return err
	}
	inject := func(ctx context.Context, i int) error {
		answer, err := hook.LifecycleHook(ctx, requests[i%len(requests)])
		if err == nil && len(answer.GetJsonPatch()) == 0 {
			err = errors.New("it injected nothing")
		}
		return err
	}
	fmt.Printf("\n| %d calls of the plugin, %d a second | p50 (ms) | p99 (ms) | longest (ms) |\n|---|---|---|---|\n", hookCalls, hookRate)
	for _, row := range []struct {
		what string
		call func(context.Context, int) error
	}{{"a call that does nothing", nothing}, {"the lifecycle hook", inject}, {"a call that does nothing", nothing}} {
		times, err := callSteadily(ctx, row.call)
		if err != nil {
			return err
		}
		slices.Sort(times)
		fmt.Printf("| %s | %.2f | %.2f | %.2f |\n", row.what, milliseconds(times[len(times)/2]),
			milliseconds(times[len(times)*99/100]), milliseconds(times[len(times)-1]))
	}
	return nil
}

// callSteadily makes every call at its own time, whether or not the ones before have been answered: one that is slow does not
// keep the next from being counted.
func callSteadily(ctx context.Context, call func(ctx context.Context, i int) error) ([]time.Duration, error) {
	if err := call(ctx, 0); err != nil { // connects
		return nil, fmt.Errorf("call the plugin: %w", err)
	}
	times := make([]time.Duration, hookCalls)
	calls, ctx := errgroup.WithContext(ctx)
	ticker := time.NewTicker(time.Second / hookRate)
	defer ticker.Stop()
	for i := range times {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), calls.Wait())
		}
		calls.Go(func() error {
			start := time.Now()
			err := call(ctx, i)
			times[i] = time.Since(start)
			if err != nil {
				return fmt.Errorf("call the plugin: %w", err)
			}
			return nil
		})
	}
	return times, calls.Wait()
}

// hookRequests are what the operator sends for the primary of the cluster, which has no sidecar.
func hookRequests(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) ([]*lifecycle.OperatorLifecycleRequest, error) {
	pod, err := primaryOf(ctx, kube, c)
	if err != nil {
		return nil, err
	}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	object, err := json.Marshal(pod)
	if err != nil {
		return nil, fmt.Errorf("encode the pod: %w", err)
	}
	owner := c.DeepCopy()
	owner.SetGroupVersionKind(cnpgv1.SchemeGroupVersion.WithKind("Cluster"))
	cluster, err := json.Marshal(owner)
	if err != nil {
		return nil, fmt.Errorf("encode the Cluster: %w", err)
	}
	var requests []*lifecycle.OperatorLifecycleRequest
	for _, operation := range []lifecycle.OperatorOperationType_Type{
		lifecycle.OperatorOperationType_TYPE_CREATE, lifecycle.OperatorOperationType_TYPE_EVALUATE,
	} {
		requests = append(requests, &lifecycle.OperatorLifecycleRequest{
			OperationType: &lifecycle.OperatorOperationType{Type: operation}, ClusterDefinition: cluster, ObjectDefinition: object,
		})
	}
	return requests, nil
}

// pluginEndpoint returns the plugin's address and the TLS configuration of its client, found as the operator finds them: by the
// annotations of its Service.
func pluginEndpoint(ctx context.Context, kube *scenario.Kubernetes) (string, *tls.Config, error) {
	var service corev1.Service
	var server, own corev1.Secret
	key := client.ObjectKey{Namespace: scenario.OperatorNamespace, Name: scenario.PluginDeployment}
	if err := kube.Get(ctx, key, &service); err != nil {
		return "", nil, fmt.Errorf("read the plugin's Service: %w", err)
	}
	for annotation, secret := range map[string]*corev1.Secret{
		"cnpg.io/pluginServerSecret": &server, "cnpg.io/pluginClientSecret": &own,
	} {
		key.Name = service.Annotations[annotation]
		if err := kube.Get(ctx, key, secret); err != nil {
			return "", nil, fmt.Errorf("read the Secret of %s: %w", annotation, err)
		}
	}
	pair, err := tls.X509KeyPair(own.Data[corev1.TLSCertKey], own.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return "", nil, fmt.Errorf("read the operator's certificate: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(server.Data[corev1.TLSCertKey]) {
		return "", nil, errors.New("the plugin's Secret holds no certificate")
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: service.Name, RootCAs: pool, Certificates: []tls.Certificate{pair},
	}
	return net.JoinHostPort(service.Spec.ClusterIP, service.Annotations["cnpg.io/pluginPort"]), config, nil
}

func reachable(ctx context.Context, address string) bool {
	connection, err := (&net.Dialer{Timeout: reach}).DialContext(ctx, "tcp", address)
	return err == nil && connection.Close() == nil
}

func milliseconds(d time.Duration) float64 { return 1000 * d.Seconds() }
