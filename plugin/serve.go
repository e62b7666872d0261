package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"sync/atomic"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	identityapi "github.com/cloudnative-pg/cnpg-i/pkg/identity"
	lifecycleapi "github.com/cloudnative-pg/cnpg-i/pkg/lifecycle"
	reconcilerapi "github.com/cloudnative-pg/cnpg-i/pkg/reconciler"
	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/cnpg-i/scale-to-zero/plugin/cnpgi"
	"github.com/cnpg-i/scale-to-zero/plugin/config"
	"github.com/cnpg-i/scale-to-zero/plugin/fleet"
	"github.com/cnpg-i/scale-to-zero/plugin/metrics"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/informers"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// queued is how many clusters the operator's hook may enqueue before more are left to the informers, which see them
// anyway.
const queued = 1024

// serve runs the controllers and the servers until the context ends or one of them fails.
func serve(ctx context.Context, c config.Config, logger *slog.Logger) error {
	ctrl.SetLogger(logr.FromSlogHandler(logger.Handler()))
	resource := schema.GroupVersion{Group: c.Group, Version: c.Version}
	var ready readiness
	manager, err := newManager(c, resource)
	if err != nil {
		return err
	}
	if c.Gateway != nil {
		other, err := otherInstallation(ctx, manager.GetAPIReader(), c.Gateway.Replica.Namespace)
		if err != nil {
			logger.Warn("cannot tell whether another installation runs", "error", err.Error())
		}
		if other != "" {
			return fmt.Errorf("another installation of the plugin runs in namespace %s: a Kubernetes cluster can have one, so remove one of the two (docs/reference/networks.md)", other)
		}
	}
	// What runs keeps running while the gateway drains: held clients wait for clusters that the operator wakes with our help.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	// The newer recorder needs rights on events.k8s.io as well. This one uses those that package events needs anyway.
	recorder := manager.GetEventRecorderFor(contract.ManagedBy)
	replicas, err := newPeerProber(c.MetricsAddress)
	if err != nil {
		return err
	}
	woken, err := newWakeGateway(running, c.Gateway, reach{ask: replicas.ask, dial: dialTCP}, manager, recorder, logger)
	if err != nil {
		return err
	}
	enqueued := make(chan event.GenericEvent, queued)
	if err := fleet.SetupWithManager(manager, recorder, resource, enqueued); err != nil {
		return err
	}
	if err := ctrlmetrics.Registry.Register(newFleet(c.SidecarResources, manager, woken)); err != nil {
		return fmt.Errorf("register the metrics: %w", err)
	}
	if c.ServerAddress != "" {
		if err := ctrlmetrics.Registry.Register(metrics.NewCertificates(certificateFiles(c).Expiry)); err != nil {
			return fmt.Errorf("register the metrics: %w", err)
		}
	}
	limitRanges, err := watchLimitRanges(running, manager)
	if err != nil {
		return err
	}
	metrics.RegisterBuildInfo(ctrlmetrics.Registry, version)
	calls := metrics.NewCalls(ctrlmetrics.Registry,
		identityapi.Identity_ServiceDesc, lifecycleapi.OperatorLifecycle_ServiceDesc, reconcilerapi.ReconcilerHooks_ServiceDesc)
	leaving := make(chan struct{})
	injector := &cnpgi.Lifecycle{
		Sidecar: cnpgi.Sidecar{
			Image: c.SidecarImage, Resources: c.SidecarResources, LogLevel: c.LogLevel.String(), Group: c.Group,
			Version:    c.Version,
			DozeMemory: c.DozeMemory,
		},
		AtOnce: c.UpdateAtOnce, SidecarProbes: c.ShortenStartupProbes, LimitRanges: limitRanges, Logger: logger,
		Observer: &observer{Injections: metrics.NewInjections(ctrlmetrics.Registry), resource: resource, recorder: recorder},
	}
	hooks := &cnpgi.Hooks{Enqueue: func(name types.NamespacedName) {
		cluster := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
		select {
		case enqueued <- event.GenericEvent{Object: cluster}:
		default:
		}
	}}
	if woken != nil { // without a gateway none dozes
		hooks.WakeForBackup, hooks.EndLoop = woken.controller.WakeForBackup, woken.controller.EndLoop
	}
	server := &cnpgi.Server{
		Leaving: leaving, Logger: logger, Interceptors: []grpc.UnaryServerInterceptor{calls.Intercept},
		Register: func(registrar grpc.ServiceRegistrar) {
			identityapi.RegisterIdentityServer(registrar, &cnpgi.Identity{Version: version, Ready: ready.synced.Load})
			lifecycleapi.RegisterOperatorLifecycleServer(registrar, injector)
			reconcilerapi.RegisterReconcilerHooksServer(registrar, hooks)
		},
	}
	logger.Info("the plugin starts", "version", version, "sidecar", c.SidecarImage)
	defer context.AfterFunc(ctx, func() {
		if woken != nil {
			woken.controller.Leave(running)
			close(leaving)
			woken.controller.Drain(running)
		}
		stop()
	})()
	return runParts(running, c, manager, server, woken, &ready)
}

// readiness is what this replica can do by now.
type readiness struct {
	// synced: the informers are in sync, which is all that the operator's calls need. leads: AwaitReady no longer waits
	// for the EndpointSlices that route clients here; /readyz then succeeds, and a rollout stops an older replica.
	synced, leads atomic.Bool
}

// watchLimitRanges returns what lists the LimitRanges of a namespace. The replica is not ready before it has seen them,
// so that no call of the operator waits for them.
func watchLimitRanges(ctx context.Context, manager ctrl.Manager) (func(context.Context, string) ([]corev1.LimitRange, error), error) {
	if _, err := manager.GetCache().GetInformer(ctx, &corev1.LimitRange{}, cache.BlockUntilSynced(false)); err != nil {
		return nil, fmt.Errorf("watch the LimitRanges: %w", err)
	}
	return func(ctx context.Context, namespace string) ([]corev1.LimitRange, error) {
		var ranges corev1.LimitRangeList
		if err := manager.GetClient().List(ctx, &ranges, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list the LimitRanges: %w", err)
		}
		return ranges.Items, nil
	}, nil
}

// newFleet makes the collector of the clusters' series. Without a gateway no pod is watched, and none is asked for:
// that would have the informers keep every pod there is.
func newFleet(sidecars cnpgi.Sidecars, manager ctrl.Manager, woken *wakeGateway) *metrics.Fleet {
	sources := metrics.Sources{Informers: manager.GetClient(), Now: time.Now, Sidecars: sidecars}
	if woken != nil {
		sources.Instances, sources.Unrouted, sources.Wakes = woken.controller.Informers.Pods, woken.controller.Unrouted, woken.metrics
		sources.LastBackup = woken.controller.LastBackup
	}
	return metrics.NewFleet(sources)
}

// runParts runs the parts together; the first that fails ends the others.
func runParts(ctx context.Context, c config.Config, manager ctrl.Manager, server *cnpgi.Server, woken *wakeGateway, ready *readiness) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := manager.Start(ctx); err != nil {
			return fmt.Errorf("run the controllers: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		if !manager.GetCache().WaitForCacheSync(ctx) {
			return nil
		}
		ready.synced.Store(true)
		if woken != nil {
			woken.controller.AwaitReady(ctx)
		}
		ready.leads.Store(true)
		return nil
	})
	group.Go(func() error {
		return servePages(ctx, c.MetricsAddress, pages(ctrlmetrics.Registry, ready.leads.Load, woken.stale))
	})
	if c.ServerAddress != "" {
		group.Go(func() error { return server.ServeTCP(ctx, c.ServerAddress, certificateFiles(c)) })
	}
	if c.WakeEndpointAddress != "" {
		group.Go(func() error { return serveEndpoint(ctx, c, manager, woken) })
	}
	if c.SocketDirectory != "" {
		path := filepath.Join(c.SocketDirectory, contract.PluginName)
		group.Go(func() error { return server.ServeSocket(ctx, path) })
	}
	return group.Wait()
}

func certificateFiles(c config.Config) cnpgi.CertificateFiles {
	return cnpgi.CertificateFiles{ServerCert: c.ServerCert, ServerKey: c.ServerKey, ClientCert: c.ClientCert}
}

func newManager(c config.Config, resource schema.GroupVersion) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register the Kubernetes types: %w", err)
	}
	scheme.AddKnownTypes(resource, &cnpgv1.Cluster{}, &cnpgv1.ClusterList{}, &cnpgv1.ScheduledBackup{}, &cnpgv1.ScheduledBackupList{},
		&cnpgv1.Database{}, &cnpgv1.DatabaseList{}, &cnpgv1.DatabaseRole{}, &cnpgv1.DatabaseRoleList{},
		&cnpgv1.Publication{}, &cnpgv1.PublicationList{}, &cnpgv1.Subscription{}, &cnpgv1.SubscriptionList{},
		&cnpgv1.Pooler{}, &cnpgv1.PoolerList{}, &cnpgv1.Backup{}, &cnpgv1.BackupList{})
	metav1.AddToGroupVersion(scheme, resource)
	restConfig, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	// No limit of our own: when a fleet wakes, or its gateway starts, thousands of requests are due at once, and the API
	// server shares itself out fairly. The default of 20 a second would make the last of 500 clients wait for half a
	// minute.
	restConfig.QPS = -1
	kept := fleet.ByObject()
	kept[&corev1.LimitRange{}] = cache.ByObject{Transform: cache.TransformStripManagedFields()}
	if c.Gateway != nil {
		maps.Copy(kept, informers.ByObject(c.Gateway.Replica.Namespace))
	}
	manager, err := ctrl.NewManager(restConfig, ctrl.Options{
		Scheme: scheme, HealthProbeBindAddress: "0",
		MapperProvider: informers.NewMapper, Cache: cache.Options{ByObject: kept, DefaultTransform: informers.Transform},
		Client:  client.Options{Cache: &client.CacheOptions{DisableFor: informers.ReadLive()}},
		Metrics: metricsserver.Options{BindAddress: "0"}, // pages.go serves them
	})
	if err != nil {
		return nil, fmt.Errorf("make the controller manager: %w", err)
	}
	return manager, nil
}

// observer counts the calls of the lifecycle hook and writes an Event where the sidecar has no place.
type observer struct {
	*metrics.Injections
	resource schema.GroupVersion
	recorder record.EventRecorder
}

// NotInjected writes an Event on the Cluster that says why.
func (o *observer) NotInjected(of metav1.ObjectMeta, why string) {
	if of.Name == "" {
		return
	}
	cluster := &metav1.PartialObjectMetadata{ObjectMeta: of}
	cluster.SetGroupVersionKind(o.resource.WithKind("Cluster"))
	o.recorder.Eventf(cluster, corev1.EventTypeWarning, "SidecarNotInjected", "The sidecar is not injected: %s", why)
}

// otherInstallation returns the namespace of another installation that has a ready replica, or "". Each of the two
// would remove the EndpointSlices of the other as those of dead replicas. It is found by the EndpointSlices of its
// Service, which have the labels of the Service.
func otherInstallation(ctx context.Context, reader client.Reader, own string) (string, error) {
	var slices discoveryv1.EndpointSliceList
	if err := reader.List(ctx, &slices, client.MatchingLabels{"app": "scale-to-zero", "cnpg.io/pluginName": contract.PluginName}); err != nil {
		return "", fmt.Errorf("list the EndpointSlices of the plugin: %w", err)
	}
	for i := range slices.Items {
		for _, endpoint := range slices.Items[i].Endpoints {
			if slices.Items[i].Namespace != own && ptr.Deref(endpoint.Conditions.Ready, false) {
				return slices.Items[i].Namespace, nil
			}
		}
	}
	return "", nil
}
