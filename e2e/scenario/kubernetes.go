// Package scenario holds what the end-to-end tests, the demo and the benchmarks do with a Kubernetes cluster: create
// CloudNativePG clusters, connect to them as clients, and wait for the expected results. It does not depend on how the
// Kubernetes cluster was created.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Names from the manifests.
const (
	OperatorNamespace = "cnpg-system"
	PluginDeployment  = "scale-to-zero"
	PluginName        = "cnpg-i-scale-to-zero.xata.io"
	SidecarContainer  = "scale-to-zero"
)

// Kubernetes is a connection to the cluster under test.
type Kubernetes struct {
	client.WithWatch
	// Clientset provides what the generic client lacks: logs, proxies and exec.
	Clientset kubernetes.Interface
	// REST is the configuration of both clients.
	REST *rest.Config
	// PostgresImage is the operand image of new clusters; empty leaves the choice to the operator.
	PostgresImage string
	// PgBouncerImage is the image of new poolers; empty leaves the choice to the operator.
	PgBouncerImage string
}

// Connect connects to the cluster in KUBECONFIG. POSTGRES_IMAGE and PGBOUNCER_IMAGE set the images.
func Connect() (*Kubernetes, error) {
	path := os.Getenv("KUBECONFIG")
	if path == "" {
		return nil, fmt.Errorf("KUBECONFIG is not set: it names the cluster to use")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", path, err)
	}
	config.QPS, config.Burst = 200, 400
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), cnpgv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register the types: %w", err)
	}
	generic, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a clientset: %w", err)
	}
	return &Kubernetes{
		WithWatch: generic, Clientset: clientset, REST: config,
		PostgresImage: os.Getenv("POSTGRES_IMAGE"), PgBouncerImage: os.Getenv("PGBOUNCER_IMAGE"),
	}, nil
}

// toAdmit bounds how long a write is repeated that a webhook did not answer: another test may stop the operator for minutes.
const toAdmit = 10 * time.Minute

// Create is that of the client, repeated while a webhook does not answer.
func (k *Kubernetes) Create(ctx context.Context, object client.Object, options ...client.CreateOption) error {
	return admitted(ctx, func() error { return k.WithWatch.Create(ctx, object, options...) })
}

// Patch is that of the client, repeated while a webhook does not answer.
func (k *Kubernetes) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	return admitted(ctx, func() error { return k.WithWatch.Patch(ctx, object, patch, options...) })
}

// Apply is that of the client, repeated while a webhook does not answer.
func (k *Kubernetes) Apply(ctx context.Context, object runtime.ApplyConfiguration, options ...client.ApplyOption) error {
	return admitted(ctx, func() error { return k.WithWatch.Apply(ctx, object, options...) })
}

// admitted repeats a write until every webhook has answered. The API server gives the operator's webhooks ten seconds, and then refuses
// the write with an internal error.
func admitted(ctx context.Context, write func() error) error {
	for deadline := time.Now().Add(toAdmit); ; {
		err := write()
		if !apierrors.IsInternalError(err) || time.Now().After(deadline) || Rest(ctx, 500*time.Millisecond) != nil {
			return err
		}
	}
}

// As returns a client that authenticates with a token, and repeats writes like this one.
func (k *Kubernetes) As(token string) (client.Client, error) {
	config := rest.AnonymousClientConfig(k.REST)
	config.BearerToken = token
	other, err := client.NewWithWatch(config, client.Options{Scheme: k.Scheme()})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return &Kubernetes{WithWatch: other, REST: config}, nil
}

// InNamespace connects to the cluster, and has something done in a new namespace, which it deletes afterwards.
func InNamespace(ctx context.Context, prefix string, do func(k *Kubernetes, namespace string) error) error {
	k, err := Connect()
	if err != nil {
		return err
	}
	namespace, err := k.Namespace(ctx, prefix)
	if err != nil {
		return err
	}
	defer func() {
		_ = k.Delete(context.WithoutCancel(ctx), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	}()
	return do(k, namespace)
}

// Namespace creates a namespace with a generated name.
func (k *Kubernetes) Namespace(ctx context.Context, prefix string) (string, error) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-"}}
	if err := k.Create(ctx, namespace); err != nil {
		return "", fmt.Errorf("create namespace %s: %w", prefix, err)
	}
	return namespace.Name, nil
}
