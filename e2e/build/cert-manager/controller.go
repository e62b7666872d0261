package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/sets"

	certmanager "github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/healthz"

	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

// The defaults of cert-manager's own command (internal/apis/config/controller/v1alpha1), whose package links an issuer that the
// module proxy does not have.
const (
	workers                     = 5
	probes                      = "0.0.0.0:9403"
	queriesPerSecond            = 20
	burst                       = 50
	overdue                     = 20 * time.Second
	shortestPause, longestPause = time.Hour, 32 * time.Hour
)

// controller runs every control loop that is linked. There is one replica, so that none is elected.
func controller(ctx context.Context, arguments []string) error {
	options := certmanager.ContextOptions{
		KubernetesAPIQPS: queriesPerSecond, KubernetesAPIBurst: burst,
		CertificateOptions: certmanager.CertificateOptions{
			CertificateRequestMinimumBackoffDuration: shortestPause, CertificateRequestMaximumBackoffDuration: longestPause,
		},
		IngressShimOptions: certmanager.IngressShimOptions{GatewayAPIExtraProtocols: sets.New[string]()},
	}
	if err := parse(arguments, func(flags *pflag.FlagSet) {
		flags.StringVar(&options.ClusterResourceNamespace, "cluster-resource-namespace", "kube-system", "")
	}); err != nil {
		return fmt.Errorf("read the flags: %w", err)
	}
	factory, err := certmanager.NewContextFactory(ctx, options)
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	shared, err := factory.Build()
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	loops, ctx := errgroup.WithContext(ctx)
	for name, build := range certmanager.Known() {
		loop, err := build(factory)
		if err != nil {
			return fmt.Errorf("make the control loop %s: %w", name, err)
		}
		loops.Go(func() error { return loop.Run(workers, ctx) })
	}
	var network net.ListenConfig
	listener, err := network.Listen(ctx, "tcp", probes)
	if err != nil {
		return fmt.Errorf("listen for probes: %w", err)
	}
	loops.Go(func() error { return healthz.NewServer(overdue).Start(ctx, listener) })
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	shared.HTTP01ResourceMetadataInformersFactory.Start(ctx.Done())
	return loops.Wait()
}
