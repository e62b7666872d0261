package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cloudnative-pg/cloudnative-pg/pkg/specs"
	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/cnpg-i/scale-to-zero/internal/apiservertest"
	"github.com/cnpg-i/scale-to-zero/internal/porttest"
	"github.com/cnpg-i/scale-to-zero/plugin/cnpgi"
	"github.com/cnpg-i/scale-to-zero/plugin/config"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/ports"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

const account = "system:serviceaccount:cnpg-system:cnpg-scale-to-zero-plugin"

// asPlugin writes a kubeconfig for the plugin's service account and makes the plugin use it.
func asPlugin(t *testing.T, c *rest.Config) {
	t.Helper()
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{Server: c.Host, CertificateAuthorityData: c.CAData}
	kubeconfig.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: c.CertData, ClientKeyData: c.KeyData, Impersonate: account}
	kubeconfig.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	kubeconfig.CurrentContext = "x"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, path); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", path)
}

// grant applies the shipped RBAC rules.
func grant(t *testing.T, admin client.Client) {
	t.Helper()
	rights, err := os.ReadFile("../manifests/base/rights/rights.yaml")
	if err != nil {
		t.Fatal(err)
	}
	account, err := os.ReadFile("../manifests/base/account.yaml")
	if err != nil {
		t.Fatal(err)
	}
	endpoint, err := os.ReadFile("../manifests/components/wake-endpoint/rights.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range bytes.Split(bytes.Join([][]byte{rights, account, endpoint}, []byte("\n---\n")), []byte("\n---\n")) {
		var object unstructured.Unstructured
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(object.GetKind(), "Cluster") {
			object.SetNamespace("cnpg-system")
		}
		if subjects, ok, _ := unstructured.NestedSlice(object.Object, "subjects"); ok {
			subjects[0].(map[string]any)["namespace"] = "cnpg-system"
			if err := unstructured.SetNestedSlice(object.Object, subjects, "subjects"); err != nil {
				t.Fatal(err)
			}
		}
		if err := admin.Create(t.Context(), &object); err != nil {
			t.Fatal(err)
		}
	}
}

// people change objects as users, the operator and the kubelet do.
type people struct {
	t     *testing.T
	admin client.Client
}

func (f *people) create(object client.Object) {
	f.t.Helper()
	status, _ := object.DeepCopyObject().(*corev1.Pod)
	if err := f.admin.Create(f.t.Context(), object); err != nil {
		f.t.Fatal(err)
	}
	if pod, ok := object.(*corev1.Pod); ok {
		pod.Status = status.Status
		if err := f.admin.Status().Update(f.t.Context(), pod); err != nil {
			f.t.Fatal(err)
		}
	}
}

// annotate patches the Cluster as a field manager.
func (f *people) annotate(manager, annotations string) {
	f.t.Helper()
	cluster := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders"}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":`+annotations+`}}`))
	if err := f.admin.Patch(f.t.Context(), cluster, patch, client.FieldOwner(manager)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *people) annotation(key string) string {
	f.t.Helper()
	var cluster cnpgv1.Cluster
	if err := f.admin.Get(f.t.Context(), types.NamespacedName{Namespace: "shop", Name: "orders"}, &cluster); err != nil {
		f.t.Fatal(err)
	}
	return cluster.Annotations[key]
}

// own creates the Services' own slices, without endpoints.
func (f *people) own(services ...string) []*discoveryv1.EndpointSlice {
	f.t.Helper()
	var made []*discoveryv1.EndpointSlice
	for _, name := range services {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name + "-own", Labels: map[string]string{discoveryv1.LabelServiceName: name, endpointslice.LabelCluster: "orders"}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{},
		}
		f.create(slice)
		made = append(made, slice)
	}
	return made
}

func (f *people) slices() []discoveryv1.EndpointSlice {
	f.t.Helper()
	var all discoveryv1.EndpointSliceList
	if err := f.admin.List(f.t.Context(), &all, client.InNamespace("shop"), client.MatchingLabels{discoveryv1.LabelManagedBy: endpointslice.ManagedBy}); err != nil {
		f.t.Fatal(err)
	}
	return all.Items
}

// comes waits until the condition holds, and fails the test after a while.
func (f *people) comes(what string, come func() bool) {
	f.t.Helper()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !come() {
		select {
		case <-deadline.C:
			f.t.Fatalf("it does not come that %s", what)
		case <-tick.C:
		}
	}
}

func pod(namespace, name, address string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.org/c"}}},
		Status: corev1.PodStatus{
			PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}, Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}},
		},
	}
}

// cluster creates a Cluster with its Services.
func (f *people) cluster() gateway.Service {
	f.t.Helper()
	cluster := &cnpgv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", Annotations: map[string]string{contract.AnnotationEnabled: "true"}},
		Spec: cnpgv1.ClusterSpec{
			Instances: 1, ImageName: "example.org/postgresql:17.5", Plugins: []cnpgv1.PluginConfiguration{{Name: contract.PluginName}},
			StorageConfiguration: cnpgv1.StorageConfiguration{Size: "1Gi"},
		},
	}
	f.create(cluster)
	cluster.Status.CurrentPrimary, cluster.Status.TargetPrimary = "orders-1", "orders-1"
	if err := f.admin.Status().Update(f.t.Context(), cluster); err != nil {
		f.t.Fatal(err)
	}
	var rw gateway.Service
	for _, service := range []*corev1.Service{specs.CreateClusterReadWriteService(*cluster), specs.CreateClusterReadService(*cluster)} {
		service.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "postgresql.cnpg.io/v1", Kind: "Cluster", Name: "orders", UID: cluster.UID, Controller: ptr.To(true),
		}}
		f.create(service)
		if service.Name == "orders-rw" {
			rw = gateway.Service{Namespace: "shop", Name: service.Name, UID: service.UID, Cluster: "orders"}
		}
	}
	return rw
}

// shown compares some metrics of a scrape, using the shipped RBAC rules and the informers' transformed objects.
func (f *people) shown(collector prometheus.Collector, want string) {
	f.t.Helper()
	var names []string
	for _, found := range regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(want, -1) {
		names = append(names, found[1])
	}
	if err := testutil.CollectAndCompare(collector, strings.NewReader(want), names...); err != nil {
		f.t.Error(err)
	}
}

// wholeServices wants the manager's client to read Services as the API server has them.
func (f *people) wholeServices(manager ctrl.Manager) {
	f.t.Helper()
	of := []client.ListOption{client.InNamespace("shop"), client.MatchingLabels{endpointslice.LabelCluster: "orders"}}
	var want, got corev1.ServiceList
	if err := f.admin.List(f.t.Context(), &want, of...); err != nil || len(want.Items) == 0 {
		f.t.Fatal(len(want.Items), err)
	}
	if err := manager.GetClient().List(f.t.Context(), &got, of...); err != nil {
		f.t.Error(err)
	}
	if diff := cmp.Diff(want.Items, got.Items); diff != "" {
		f.t.Errorf("Services (-want +got):\n%s", diff)
	}
}

func TestAgainstAnAPIServer(t *testing.T) { // it sets KUBECONFIG
	restConfig := apiservertest.Start(t, "clusters", "scheduledbackups", "backups")
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, cnpgv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	admin, err := client.New(restConfig, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	f := &people{t: t, admin: admin}
	for _, name := range []string{"cnpg-system", "shop"} {
		f.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	grant(t, admin)
	own := pod("cnpg-system", "scale-to-zero-1", "10.1.0.1", nil)
	f.create(own)
	rw := f.cluster()

	asPlugin(t, restConfig)
	ctrl.SetLogger(logr.Discard())
	var logged bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&logged, nil))
	settings := &config.Gateway{
		Ports: ports.Range{First: 21000, Last: 21999}, Allow: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")},
		HibernatedBy: []string{"sablier"}, WakeTimeout: 10 * time.Minute, HandoverWait: 100 * time.Millisecond, DrainTimeout: time.Second,
		Replica: endpointslice.Replica{Namespace: "cnpg-system", Pod: own.Name, UID: own.UID, Node: "node", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1")}},
	}
	manager, err := newManager(config.Config{Gateway: settings}, schema.GroupVersion{Group: "postgresql.cnpg.io", Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	way := reach{
		ask: func(context.Context, netip.Addr) error { return nil },
		dial: func(ctx context.Context, _ string) (net.Conn, error) { // there is no kube-proxy
			ctx = context.WithoutCancel(ctx)   // this machine may be slower than a real network
			for _, slice := range f.slices() { //nolint:contextcheck // the test's own question
				if conn, err := dialTCP(ctx, fmt.Sprintf("127.0.0.1:%d", endpointslice.PortOf(&slice))); err == nil {
					_ = conn.Close()
				}
			}
			return nil, context.DeadlineExceeded
		},
	}
	woken, err := newWakeGateway(ctx, settings, way, manager, record.NewFakeRecorder(10), logger)
	if err != nil {
		t.Fatal(err)
	}
	woken.backend.Probe = func(context.Context, netip.AddrPort) bool { return true }
	relieved := f.relieves(own)
	var ready readiness
	served := config.Config{Gateway: settings, MetricsAddress: porttest.Address(t), WakeEndpointAddress: porttest.Address(t), Group: "postgresql.cnpg.io"}
	ask := f.endpoint(restConfig, &served)
	ended := make(chan error, 1)
	go func() { ended <- runParts(ctx, served, manager, nil, woken, &ready) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(logged.String())
		}
	})

	relieved(served.MetricsAddress)
	f.wholeServices(manager)

	announced := contract.Announcement{PodUID: "pod-uid"}
	f.comes("an announcement is acknowledged", func() bool {
		if now := time.Now(); !announced.Deadline.After(now) { // this machine may be too slow for one
			announced.Deadline = now.Add(contract.AnnouncementLifetime - 5*time.Second)
			f.annotate(contract.FieldManager, fmt.Sprintf(`{%q:%q}`, contract.AnnotationAnnounced, announced))
		}
		return f.annotation(contract.AnnotationGatewayReady) == announced.String()
	})
	before := f.slices()
	if len(before) != 2 {
		t.Fatalf("%d slices, want 2", len(before))
	}

	f.annotate(contract.FieldManager, fmt.Sprintf(`{%q:"on",%q:"2026-03-01T00:00:00Z",%q:null}`, contract.AnnotationHibernation, contract.AnnotationAsleepSince, contract.AnnotationAnnounced))
	resolved := make(chan error, 1)
	go func() {
		address, err := woken.backend.Resolve(ctx, rw, gateway.Client{Peer: netip.MustParseAddrPort("192.0.2.1:4000"), User: "app"})
		if err == nil && address.String() != "10.0.0.1:5432" {
			err = fmt.Errorf("routed to %s", address)
		}
		resolved <- err
	}()
	var cluster cnpgv1.Cluster
	if err := admin.Get(t.Context(), types.NamespacedName{Namespace: "shop", Name: "orders"}, &cluster); err != nil {
		t.Fatal(err)
	}
	cluster.Status.Conditions = []metav1.Condition{{Type: contract.AnnotationHibernation, Status: metav1.ConditionTrue, Reason: "Hibernated", LastTransitionTime: metav1.Now()}}
	if err := admin.Status().Update(t.Context(), &cluster); err != nil {
		t.Fatal(err)
	}
	f.comes("hibernation is off", func() bool {
		return f.annotation(contract.AnnotationHibernation) == "" && strings.Contains(f.annotation(contract.AnnotationLastWake), "192.0.2.1")
	})
	instance := pod("shop", "orders-1", "10.0.0.1", map[string]string{endpointslice.LabelCluster: "orders", endpointslice.LabelPodRole: "instance"})
	instance.OwnerReferences = []metav1.OwnerReference{{APIVersion: "postgresql.cnpg.io/v1", Kind: "Cluster", Name: "orders", UID: "u", Controller: ptr.To(true)}}
	instance.Spec.Containers = append(instance.Spec.Containers, corev1.Container{Name: "scale-to-zero", Image: "example.org/sidecar:v7"})
	f.create(instance)
	if err := <-resolved; err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(versions(before), versions(f.slices())); diff != "" {
		t.Errorf("slices were written on the way (-before +after):\n%s", diff)
	}
	for _, slice := range f.own("orders-rw", "orders-r") {
		slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
		if err := admin.Update(t.Context(), slice); err != nil {
			t.Fatal(err)
		}
	}
	f.comes("nothing of ours is left", func() bool { return len(f.slices()) == 0 })
	f.shown(newFleet(cnpgi.Sidecars{}, manager, woken), `
# HELP cnpg_scale_to_zero_instance_pods Pods of the cluster's instances, by the image of their sidecar; none: they have no sidecar.
# TYPE cnpg_scale_to_zero_instance_pods gauge
cnpg_scale_to_zero_instance_pods{cluster="orders",namespace="shop",sidecar_image="example.org/sidecar:v7"} 1
# HELP cnpg_scale_to_zero_suspended_schedules ScheduledBackups of the cluster that are suspended because it sleeps.
# TYPE cnpg_scale_to_zero_suspended_schedules gauge
cnpg_scale_to_zero_suspended_schedules{cluster="orders",namespace="shop"} 0
# HELP cnpg_scale_to_zero_wakes_on_connect Whether a connection would wake the cluster, by its settings and by who put it to sleep.
# TYPE cnpg_scale_to_zero_wakes_on_connect gauge
cnpg_scale_to_zero_wakes_on_connect{cluster="orders",namespace="shop"} 1
`)

	f.annotate(contract.FieldManager, fmt.Sprintf(`{%q:"on"}`, contract.AnnotationHibernation))
	f.comes("it is armed again", func() bool { return len(f.slices()) == 2 })
	f.annotate(contract.FieldManager, fmt.Sprintf(`{%q:null}`, contract.AnnotationHibernation))
	f.annotate("kubectl-annotate", fmt.Sprintf(`{%q:"on"}`, contract.AnnotationHibernation))
	f.comes("a person's hibernation disarms it", func() bool { return len(f.slices()) == 0 })
	f.annotate("kubectl-annotate", fmt.Sprintf(`{%q:null}`, contract.AnnotationHibernation))
	f.annotate("sablier", fmt.Sprintf(`{%q:"on"}`, contract.AnnotationHibernation))
	f.comes("that of a listed tool is taken over", func() bool {
		return len(f.slices()) == 2 && f.annotation(contract.AnnotationAsleepReason) == "hibernated by sablier"
	})
	if err := admin.Get(t.Context(), types.NamespacedName{Namespace: "shop", Name: "orders"}, &cluster); err != nil {
		t.Fatal(err)
	}
	if !plan.OwnsHibernation(cluster.ManagedFields) {
		t.Errorf("the hibernation is not ours: %v", cluster.ManagedFields)
	}
	f.annotate(contract.FieldManager, fmt.Sprintf(`{%q:null}`, contract.AnnotationHibernation))
	f.annotate(contract.FieldManager, fmt.Sprintf(`{%q:"on"}`, contract.AnnotationHibernation))
	f.comes("it is armed for the third time", func() bool { return len(f.slices()) == 2 })
	f.annotate("kubectl-annotate", fmt.Sprintf(`{%q:"manual"}`, contract.AnnotationWake))
	f.comes("wake=manual disarms it", func() bool { return len(f.slices()) == 0 })
	f.comes("an Event says how to wake it", func() bool {
		var events corev1.EventList
		if admin.List(t.Context(), &events, client.InNamespace("shop")) != nil {
			return false
		}
		told := map[string]int{}
		for i := range events.Items {
			told[events.Items[i].Reason]++
		}
		return told["WakesByHandOnly"] == 1 && told["Woken"] == 1
	})
	f.annotate("kubectl-annotate", fmt.Sprintf(`{%q:null}`, contract.AnnotationWake))
	f.comes("it is armed for the fourth time", func() bool { return len(f.slices()) == 2 })
	f.annotate("kubectl-annotate", fmt.Sprintf(`{%q:"1h"}`, contract.AnnotationBackupMaxAge))
	backedUp := cluster.DeepCopy()
	backedUp.Status.Conditions = append(backedUp.Status.Conditions, metav1.Condition{
		Type: string(cnpgv1.ConditionBackup), Status: metav1.ConditionTrue, Reason: "LastBackupSucceeded", LastTransitionTime: metav1.Unix(0, 0),
	})
	if err := admin.Status().Patch(t.Context(), backedUp, client.MergeFrom(&cluster)); err != nil {
		t.Fatal(err)
	}
	f.comes("its Backups do not say how to make another", func() bool {
		var events corev1.EventList
		return admin.List(t.Context(), &events, client.InNamespace("shop")) == nil &&
			slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Reason == "BackupKindUnknown" })
	})
	f.annotate("kubectl-annotate", fmt.Sprintf(`{%q:null}`, contract.AnnotationBackupMaxAge))
	if err := admin.Delete(t.Context(), instance, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	f.annotate(contract.FieldManager, fmt.Sprintf(`{%q:null}`, contract.AnnotationLastWake))
	ask(http.MethodGet, "reader", http.StatusOK, `"state":"asleep"`)
	ask(http.MethodPost, "reader", http.StatusForbidden, "you may not patch this Cluster")
	ask(http.MethodGet, "stranger", http.StatusForbidden, "you may not get this Cluster")
	ask(http.MethodGet, "", http.StatusUnauthorized, "present a valid token")
	ask(http.MethodPost, "waker", http.StatusAccepted, "The wake is requested")
	f.comes("it is woken for the request", func() bool {
		return f.annotation(contract.AnnotationHibernation) == "" && strings.Contains(f.annotation(contract.AnnotationLastWake), `"cause":"request"`)
	})
	woken.controller.Leave(ctx)
	woken.controller.Drain(ctx)
	if left := f.slices(); len(left) != 0 {
		t.Errorf("%d slices are left of a plugin that stopped", len(left))
	}
}

// relieves sets up a starting plugin's pod and an old replica with slices, while the plugin may not create slices. The returned
// function, to be called after the start, checks that the plugin is ready only once its slices are made, and leaves it with an
// awake cluster.
func (f *people) relieves(starting *corev1.Pod) func(address string) {
	f.t.Helper()
	status := func(ready corev1.ConditionStatus) {
		f.t.Helper()
		now := metav1.Now()
		starting.Status.StartTime = &now
		starting.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: now}}
		starting.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}}
		if err := f.admin.Status().Update(f.t.Context(), starting); err != nil {
			f.t.Fatal(err)
		}
	}
	status(corev1.ConditionFalse)
	f.annotate(contract.FieldManager, fmt.Sprintf(`{%q:"on",%q:"2026-03-01T00:00:00Z"}`, contract.AnnotationHibernation, contract.AnnotationAsleepSince))
	old := pod("cnpg-system", "scale-to-zero-0", "10.1.0.9", nil)
	f.create(old)
	theirs := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders-rw-old", Labels: map[string]string{
			discoveryv1.LabelServiceName: "orders-rw", discoveryv1.LabelManagedBy: endpointslice.ManagedBy,
			endpointslice.LabelCluster: "orders", endpointslice.LabelReplica: string(old.UID),
		}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.9"}}},
	}
	f.create(theirs)
	allow := f.forbidSlices()
	return func(address string) {
		f.t.Helper()
		f.comes("the pages are served", func() bool {
			conn, err := net.DialTimeout("tcp", address, time.Minute)
			return err == nil && conn.Close() == nil
		})
		f.comes("ports are given", func() bool {
			var ledgers corev1.ConfigMapList
			return f.admin.List(f.t.Context(), &ledgers, client.InNamespace("cnpg-system"), client.HasLabels{ports.Label}) == nil && len(ledgers.Items) != 0
		})
		if f.readyAt(address) {
			f.t.Error("a replica that relieves another is ready before its slices are made")
		}
		allow()
		f.comes("it is ready", func() bool { return f.readyAt(address) })
		if led := len(f.slices()); led != 3 {
			f.t.Errorf("it is ready with %d slices beside the other's, want 2", led-1)
		}
		status(corev1.ConditionTrue)
		f.annotate(contract.FieldManager, fmt.Sprintf(`{%q:null,%q:null}`, contract.AnnotationHibernation, contract.AnnotationAsleepSince))
		for _, object := range []client.Object{old, theirs} {
			if err := client.IgnoreNotFound(f.admin.Delete(f.t.Context(), object, client.GracePeriodSeconds(0))); err != nil { // the plugin may already have removed them
				f.t.Fatal(err)
			}
		}
		owned := f.own("orders-rw", "orders-r")
		for _, slice := range owned {
			slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
			if err := f.admin.Update(f.t.Context(), slice); err != nil {
				f.t.Fatal(err)
			}
		}
		f.comes("nothing of the gateway is left", func() bool { return len(f.slices()) == 0 })
		for _, slice := range owned {
			if err := f.admin.Delete(f.t.Context(), slice); err != nil {
				f.t.Fatal(err)
			}
		}
	}
}

// forbidSlices removes the plugin's right to create EndpointSlices until the returned function is called.
func (f *people) forbidSlices() (allow func()) {
	f.t.Helper()
	var roles rbacv1.ClusterRoleList
	if err := f.admin.List(f.t.Context(), &roles); err != nil {
		f.t.Fatal(err)
	}
	for i := range roles.Items {
		role := &roles.Items[i]
		for j := range role.Rules {
			rule := role.Rules[j]
			if !slices.Equal(rule.Resources, []string{"endpointslices"}) || !slices.Contains(rule.Verbs, "deletecollection") || strings.HasPrefix(role.Name, "system:") {
				continue
			}
			set := func(verbs []string) {
				f.t.Helper()
				role.Rules[j].Verbs = verbs
				if err := f.admin.Update(f.t.Context(), role); err != nil {
					f.t.Fatal(err)
				}
			}
			set(slices.DeleteFunc(slices.Clone(rule.Verbs), func(verb string) bool { return verb == "create" }))
			f.comes("the API server knows that slices may not be made", func() bool { return f.may("update") && !f.may("create") })
			return func() { set(rule.Verbs) }
		}
	}
	f.t.Fatal("no role lets the plugin make EndpointSlices")
	return nil
}

// may asks whether the API server would let the plugin do something to EndpointSlices: it learns of roles by a watch.
func (f *people) may(verb string) bool {
	f.t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: account, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:cnpg-system", "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "shop", Verb: verb, Group: discoveryv1.GroupName, Resource: "endpointslices"},
	}}
	if err := f.admin.Create(f.t.Context(), review); err != nil {
		f.t.Fatal(err)
	}
	return review.Status.Allowed
}

// readyAt asks a plugin whether it is ready, like the kubelet.
func (f *people) readyAt(address string) bool {
	f.t.Helper()
	request, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, "http://"+address+"/readyz", http.NoBody)
	if err != nil {
		f.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	return answer.StatusCode == http.StatusOK
}

// versions returns the resourceVersion of each slice, to detect writes.
func versions(all []discoveryv1.EndpointSlice) map[string]string {
	found := map[string]string{}
	for i := range all {
		found[all[i].Name] = all[i].ResourceVersion
	}
	return found
}

func TestAClientIsHeldForAsLongAsAWakeMayTake(t *testing.T) {
	t.Parallel()
	if got := limits(&config.Gateway{WakeTimeout: 12 * time.Minute}).HeldFor; got != 12*time.Minute {
		t.Errorf("held for %s, want 12m", got)
	}
}
