package command

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/clusterstate"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// healthy are facts in which nothing is wrong: an awake cluster, and one that sleeps.
func healthy(now time.Time) facts {
	instance := pod("orders", "orders-1", time.Hour, true)
	instance.Spec.Containers = []corev1.Container{{Name: "postgres"}, {Name: container, Image: "sidecar:1"}}
	awake, night := see(cluster("orders"), []corev1.Pod{*instance}, true, now), see(cluster("night", asleep), nil, true, now)
	deployment := appsv1.Deployment{}
	deployment.Spec.Template.Spec.Containers = []corev1.Container{{
		Name: "cnpg-i-scale-to-zero", Env: []corev1.EnvVar{{Name: "SIDECAR_IMAGE", Value: "sidecar:1"}, {Name: "SIDECAR_CPU_LIMIT"}},
	}}
	service := corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "night-rw", UID: "u"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.0.0.1", Selector: map[string]string{"cnpg.io/cluster": "night", "cnpg.io/instanceRole": "primary"},
			Ports: []corev1.ServicePort{{Port: 5432, Protocol: corev1.ProtocolTCP}},
		},
	}
	led := discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", OwnerReferences: []metav1.OwnerReference{{Kind: "Service", UID: "u"}},
	}}
	return facts{
		now: now, deployments: []appsv1.Deployment{deployment}, replicasKnown: true, routesKnown: true,
		replicas: []corev1.Pod{*pod("", "scale-to-zero-1", time.Hour, false), *pod("", "scale-to-zero-2", time.Hour, true)},
		clusters: []examined{
			{awake, &explanation{row: row{result: result{State: clusterstate.Awake}}, Instances: []told{{Pod: "orders-1", Report: &contract.Report{}}}}},
			{night, &explanation{row: row{result: result{State: clusterstate.Asleep}}}},
		},
		services: []corev1.Service{service}, slices: []discoveryv1.EndpointSlice{led},
		ahead: map[string][2]time.Duration{
			"": {-time.Hour, 0}, "shop/scale-to-zero-2": {999 * time.Millisecond, time.Hour}, "shop/orders-1": {30 * time.Second, time.Hour},
		},
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	event := func(reason, message string, age time.Duration) func(*facts) {
		return func(f *facts) {
			f.events = append(f.events, corev1.Event{
				InvolvedObject: corev1.ObjectReference{Namespace: "shop", Name: "orders"}, Reason: reason, Message: message,
				LastTimestamp: metav1.NewTime(f.now.Add(-age)),
			})
		}
	}
	rule := func(alert string) func(*facts) {
		return func(f *facts) {
			r := alertRules{Spec: json.RawMessage(`{"groups":[{"rules":[{"alert":"` + alert + `","expr":"up"}]}]}`)}
			r.Namespace, r.Name = "monitoring", "rules"
			f.rules = append(f.rules, r)
		}
	}
	sidecar := func(f *facts) *corev1.Container { return &f.clusters[0].Pods[0].Spec.Containers[1] }
	silent := func(f *facts) { f.clusters[0].explained.Instances[0].Problem = "it did not answer in time" }
	plugin := func(f *facts) *corev1.Container { return &f.deployments[0].Spec.Template.Spec.Containers[0] }
	const unready = "No replica of the plugin is ready (docs/explanation/high-availability.md#while-the-plugin-is-entirely-down)."
	const old = "The sidecar of the pod shop/orders-1 has the image sidecar:0, and new pods get sidecar:1 (docs/guides/upgrade.md#replace-sidecars-at-once)."
	const unled = "The Cluster shop/night sleeps, and no EndpointSlice leads its Service night-rw to the gateway (docs/runbooks/ScaleToZeroUnrouted.md)."
	for name, row := range map[string]struct {
		changes []func(*facts)
		want    string
	}{
		"nothing is wrong while one replica is ready": {nil, "The command finds nothing wrong."},
		"a replica must be ready":                     {[]func(*facts){func(f *facts) { f.replicas = f.replicas[:1] }}, unready},
		"replicas that cannot be read may be ready":   {[]func(*facts){func(f *facts) { f.replicas, f.replicasKnown = nil, false }}, "The command finds nothing wrong."},
		"the plugin must be there":                    {[]func(*facts){func(f *facts) { f.deployments = nil }}, "No Deployment of the plugin exists (docs/guides/install.md)."},
		"clocks may differ by less than a second": {[]func(*facts){func(f *facts) {
			f.ahead["shop/scale-to-zero-2"] = [2]time.Duration{12900 * time.Millisecond, time.Hour}
		}}, "The clocks of the API server and of the pod shop/scale-to-zero-2 differ by 12s or more (docs/guides/troubleshooting.md#gateway_unavailable)."},
		"a sidecar corrects its own up to half a minute": {[]func(*facts){func(f *facts) {
			f.ahead["shop/orders-1"] = [2]time.Duration{-2 * time.Hour, -time.Hour - 31*time.Second}
		}}, "The clocks of the API server and of the pod shop/orders-1 differ by 31s or more (docs/guides/troubleshooting.md#gateway_unavailable)."},
		"one that was set meanwhile is not compared":             {[]func(*facts){func(f *facts) { f.ahead["shop/orders-1"] = [2]time.Duration{time.Hour, 0} }}, "The command finds nothing wrong."},
		"nor is any if the API server's was":                     {[]func(*facts){func(f *facts) { f.ahead[""] = [2]time.Duration{time.Hour, 0} }}, "The command finds nothing wrong."},
		"annotations must be valid":                              {[]func(*facts){func(f *facts) { f.clusters[0].explained.Problems = []string{`x is "y"`} }}, `An annotation of the Cluster shop/orders is invalid: x is "y" (docs/guides/troubleshooting.md#invalid_annotation).`},
		"a sidecar is to be that of new pods":                    {[]func(*facts){func(f *facts) { sidecar(f).Image = "sidecar:0" }}, old},
		"it is unknown which one new pods get without a setting": {[]func(*facts){func(f *facts) { sidecar(f).Image, f.deployments = "sidecar:0", nil; f.replicasKnown = false }}, "The command finds nothing wrong."},
		"the operator must reconcile the cluster": {[]func(*facts){func(f *facts) {
			f.clusters[0].Cluster.Status.Phase, f.clusters[0].Cluster.Status.PhaseReason = cnpgv1.PhaseFailurePlugin, "x"
		}}, "The operator does not reconcile the Cluster shop/orders: x (docs/runbooks/ScaleToZeroNotReconciled.md)."},
		"an instance needs a sidecar":                     {[]func(*facts){func(f *facts) { sidecar(f).Name = "other" }}, "The pod shop/orders-1 has no sidecar (docs/guides/troubleshooting.md#no-reason-is-given)."},
		"the newest Event says why it has none":           {[]func(*facts){event("SidecarNotInjected", "newer.", time.Hour), event("SidecarNotInjected", "older.", 2*time.Hour), func(f *facts) { sidecar(f).Name = "other" }}, "The pod shop/orders-1 has no sidecar: newer (docs/guides/troubleshooting.md#no-reason-is-given)."},
		"a sidecar must answer":                           {[]func(*facts){silent}, "The sidecar of the pod shop/orders-1 does not answer: it did not answer in time (docs/reference/command-line.md#rights)."},
		"not while its pod starts":                        {[]func(*facts){silent, func(f *facts) { f.clusters[0].Pods[0].Status.Conditions = nil }}, "The command finds nothing wrong."},
		"nor while its cluster wakes":                     {[]func(*facts){silent, func(f *facts) { f.clusters[0].explained.State = clusterstate.Waking }}, "The command finds nothing wrong."},
		"nor without a pod":                               {[]func(*facts){silent, func(f *facts) { f.clusters[0].Pods = nil }}, "The command finds nothing wrong."},
		"a sidecar that is missing is not silent as well": {[]func(*facts){silent, func(f *facts) { sidecar(f).Name = "other" }}, "The pod shop/orders-1 has no sidecar (docs/guides/troubleshooting.md#no-reason-is-given)."},
		"one that the user may not ask may be well":       {[]func(*facts){func(f *facts) { f.clusters[0].explained.Instances[0].Problem = mayNotAsk }}, "The command finds nothing wrong."},
		"Services must be able to lead to the gateway": {[]func(*facts){func(f *facts) {
			f.clusters[0].Cluster.Annotations[contract.AnnotationUnroutableServices] = "x: it is an ExternalName"
		}}, "The gateway cannot serve Services of the Cluster shop/orders: x: it is an ExternalName (docs/reference/networks.md#services-that-cannot-lead-to-the-gateway)."},
		"those of a cluster that sleeps must lead there":  {[]func(*facts){func(f *facts) { f.slices = nil }}, unled},
		"so must those of one that dozes":                 {[]func(*facts){func(f *facts) { f.slices, f.clusters[1].explained.State = nil, clusterstate.Dozing }}, unled},
		"those of one that is awake need not":             {[]func(*facts){func(f *facts) { f.slices, f.clusters[1].explained.State = nil, clusterstate.Awake }}, "The command finds nothing wrong."},
		"nor those of one that connections do not wake":   {[]func(*facts){func(f *facts) { f.slices, f.clusters[1].explained.Obstacle = nil, "manual" }}, "The command finds nothing wrong."},
		"slices that cannot be read may be there":         {[]func(*facts){func(f *facts) { f.slices, f.routesKnown = nil, false }}, "The command finds nothing wrong."},
		"the gateway must reach the instances":            {[]func(*facts){event("InstanceUnreachable", "Plugin pod x cannot", time.Minute)}, "The gateway has not reached an instance of the Cluster shop/orders: Plugin pod x cannot (docs/guides/troubleshooting.md#gateway_unavailable)."},
		"what it did not reach long ago it may reach now": {[]func(*facts){event("InstanceUnreachable", "x", time.Hour)}, "The command finds nothing wrong."},
		"the image may be named elsewhere": {[]func(*facts){func(f *facts) {
			sidecar(f).Image, plugin(f).Env[0] = "sidecar:0", corev1.EnvVar{Name: "SIDECAR_IMAGE", ValueFrom: &corev1.EnvVarSource{}}
		}}, "The command finds nothing wrong."},
		"CloudNativePG's alert pages":         {[]func(*facts){rule(offlineAlert)}, "The alert CNPGClusterOffline of the PrometheusRule monitoring/rules fires for a cluster that sleeps, and no PrometheusRule has the alert ScaleToZeroAsleep that inhibits it (docs/guides/monitoring.md#other-peoples-alerts)."},
		"it does not where it is inhibited":   {[]func(*facts){rule(offlineAlert), rule(asleepAlert)}, "The command finds nothing wrong."},
		"several things are named one a line": {[]func(*facts){func(f *facts) { f.replicas = nil; sidecar(f).Image = "sidecar:0" }}, unready + "\n" + old},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := healthy(time.Now())
			for _, change := range row.changes {
				change(&f)
			}
			text := diagnosis{Findings: judge(f)}.text()
			if diff := cmp.Diff(row.want+"\n", text); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// hospital is an API server with one cluster, whose answers are objects or texts by their path.
type hospital struct {
	server
	answers map[string]any
	date    string            // the sidecar's
	paths   map[string]string // to the query
}

func newHospital(t *testing.T) *hospital {
	t.Helper()
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "cnpg-i-scale-to-zero", Image: "plugin:1", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 8080}},
		Env: []corev1.EnvVar{{Name: "SIDECAR_IMAGE", Value: "sidecar:1"}, {Name: "PROXY_TOKEN", Value: "hunter2"}},
	}}}}
	replica := pod("", "plugin-1", time.Hour, true)
	replica.Namespace, replica.Spec = "cnpg-system", template.Spec
	instance := pod("orders", "orders-1", time.Hour, true)
	instance.Status.PodIP = "10.1.2.3"
	instance.Annotations = map[string]string{
		"cnpg.io/podSpec": `{"containers":[{"name":"postgres","env":[{"name":"AWS_SECRET_ACCESS_KEY","value":"hunter2"}]}]}`,
	}
	instance.Spec.Containers = []corev1.Container{{
		Name: container, Image: "sidecar:1", Ports: []corev1.ContainerPort{{Name: "scale-to-zero", ContainerPort: contract.SidecarPort}},
		Env: []corev1.EnvVar{{Name: "DATABASE_URL", Value: "postgres://shopper:hunter2@db/x"}},
	}}
	const shop, system = "/api/v1/namespaces/shop", "/api/v1/namespaces/cnpg-system"
	h := &hospital{paths: map[string]string{}}
	h.answers = map[string]any{
		"/version": map[string]string{"gitVersion": "v1.36.0"},
		"/apis/apps/v1/deployments?app=scale-to-zero": appsv1.DeploymentList{Items: []appsv1.Deployment{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "cnpg-system", Name: "scale-to-zero", UID: types.UID("u")},
			Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "scale-to-zero"}}, Template: template},
		}}},
		"/apis/apps/v1/deployments?app.kubernetes.io/name=cloudnative-pg": appsv1.DeploymentList{},
		system + "/pods?app=scale-to-zero":                                corev1.PodList{Items: []corev1.Pod{*replica}},
		system + "/pods/plugin-1:8080/proxy/metrics":                      "up 1\n",
		system + "/pods/plugin-1/log":                                     `{"msg":"woken","peer":"10.1.2.3:5432","user":"shopper","database":"shop-db"}` + "\nfd00::7, 127.0.0.1, ip-10-1-2-3, 20:02:21\n",
		system + "/configmaps?scale-to-zero.cnpg-i.io/ports=true":         corev1.ConfigMapList{Items: []corev1.ConfigMap{{Data: map[string]string{"10000": "u shop/orders-rw"}}}},
		system + "/events":                                                corev1.EventList{},
		shop + "/pods":                                                    corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{*instance}},
		shop + "/pods/orders-1:9189/proxy/metrics":                        "up 1\n",
		shop + "/pods/orders-1/log": "role \"orders\" of fd00::7: shop-db\n2026-01-01T00:00:00Z {\"dsn\":\"password='hunter2 hunter2'\"}\n" +
			"password={hunter2}\n",
		shop + "/events":      corev1.EventList{Items: []corev1.Event{{Reason: "Woken", Message: `Woken by 10.1.2.3 (user "shopper", database "shop-db")`}}},
		shop + "/limitranges": corev1.LimitRangeList{},
		shop + "/services":    corev1.ServiceList{},
		"/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices?endpointslice.kubernetes.io/managed-by=scale-to-zero.cnpg-i.io": discoveryv1.EndpointSliceList{},
	}
	h.proxy = reported(t, func(*contract.Report) {})
	return h
}

func (h *hospital) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.URL.Path
	if labels := r.URL.Query().Get("labelSelector"); labels != "" && !strings.Contains(labels, "podRole") {
		key += "?" + labels
	}
	h.mutex.Lock()
	h.paths[key] = r.URL.RawQuery
	answer, known := h.answers[key]
	h.mutex.Unlock()
	if strings.Contains(key, "/proxy/") && h.date != "" {
		w.Header().Set("Date", h.date)
	}
	switch answer := answer.(type) {
	case string:
		_, _ = io.WriteString(w, answer)
	case http.HandlerFunc:
		answer(w, r)
	case error:
		refuse(w, http.StatusForbidden, "Forbidden", answer.Error())
	default:
		if !known {
			h.server.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// unpacked returns the archive's files, whose directory it removes.
func unpacked(t *testing.T, path string) map[string]string {
	t.Helper()
	opened, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = opened.Close() }()
	text, err := gzip.NewReader(opened)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(text); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		directory, name, _ := strings.Cut(header.Name, "/")
		if !strings.HasPrefix(directory, "scale-to-zero-doctor-20") {
			t.Errorf("it has the directory %q", directory)
		}
		files[name] = string(content)
	}
}

func TestDoctor_writesAnArchiveWithoutSecrets(t *testing.T) {
	t.Parallel()
	h := newHospital(t)
	path := filepath.Join(t.TempDir(), "doctor.tar.gz")
	kubeconfig := serve(t, h)
	code, text := call(t.Context(), "doctor", "orders", "--archive", path, "--kubeconfig", kubeconfig)
	if want := "The command finds nothing wrong.\nThe archive is " + path + ". Read it before you publish it.\n"; code != exitDone || text != want {
		t.Errorf("code %d, it says:\n%s", code, text)
	}
	files := unpacked(t, path)
	want := []string{
		"deployments/cloudnative-pg.json", "deployments/scale-to-zero.json", "findings.txt", "namespaces/shop/endpointslices.json",
		"namespaces/shop/events.json", "namespaces/shop/limitranges.json", "namespaces/shop/orders/cluster.json",
		"namespaces/shop/orders/explain.json", "namespaces/shop/orders/orders-1.json", "namespaces/shop/orders/orders-1.log",
		"namespaces/shop/orders/orders-1.metrics", "plugin/events.json", "plugin/plugin-1.log", "plugin/plugin-1.metrics", "plugin/pods.json",
		"plugin/ports.json", "versions.json",
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(files))); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	for name, content := range files {
		if strings.Contains(content, "hunter2") {
			t.Errorf("%s has a password:\n%s", name, content)
		}
	}
	for name, says := range map[string]string{
		"versions.json": "v1.36.0", "deployments/scale-to-zero.json": leftOut, "namespaces/shop/orders/orders-1.json": "://shopper:" + leftOut + "@db/x",
		"plugin/plugin-1.log": "10.1.2.3", "namespaces/shop/orders/explain.json": "waiting",
	} {
		if !strings.Contains(files[name], says) {
			t.Errorf("%s does not say %q:\n%s", name, says, files[name])
		}
	}
	for path, query := range h.paths {
		if strings.Contains(path, "secrets") || strings.HasSuffix(path, "/events") && query != "limit=500" {
			t.Errorf("it reads %s?%s", path, query)
		}
	}
	code, text = call(t.Context(), "doctor", "orders", "--archive", path, "--kubeconfig", kubeconfig)
	if code != exitUsage || !strings.Contains(text, "it must be the name of a file that does not exist") {
		t.Errorf("over a file: code %d: %s", code, text)
	}
}

// An archive that cannot be written does not cost what was found, and nothing is left of it.
func TestDoctor_createsTheArchiveFirst(t *testing.T) {
	t.Parallel()
	h := newHospital(t)
	path := filepath.Join(t.TempDir(), "missing", "doctor.tar.gz")
	code, text := call(t.Context(), "doctor", "--archive", path, "--kubeconfig", serve(t, h))
	if _, collected := h.paths["/version"]; code != exitFailed || collected {
		t.Errorf("code %d, it collects %t: %s", code, collected, text)
	}
	h = newHospital(t)
	ctx, cancel := context.WithCancel(t.Context())
	path = filepath.Join(t.TempDir(), "doctor.tar.gz")
	h.answers["/version"] = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
		cancel()
	})
	if code, text := call(ctx, "doctor", "--archive", path, "--kubeconfig", serve(t, h)); code != exitFailed {
		t.Errorf("code %d: %s", code, text)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it leaves the file: %v", err)
	}
}

func TestDoctor_boundsWhatItReads(t *testing.T) {
	t.Parallel()
	h := newHospital(t)
	endless := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x 1\n", mostBytes))
		<-r.Context().Done()
	})
	h.answers["/api/v1/namespaces/cnpg-system/pods/plugin-1:8080/proxy/metrics"] = endless
	h.answers["/api/v1/namespaces/shop/pods/orders-1/log"] = endless
	h.proxy = func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", "no")
	}
	path := filepath.Join(t.TempDir(), "doctor.tar.gz")
	code, text := call(t.Context(), "doctor", "--archive", path, "--kubeconfig", serve(t, h))
	if code != exitFound || strings.Contains(text, "Cannot read") {
		t.Errorf("code %d: %s", code, text)
	}
	files := unpacked(t, path)
	for _, name := range []string{"plugin/plugin-1.metrics", "namespaces/shop/orders/orders-1.log"} {
		if len(files[name]) != mostBytes {
			t.Errorf("%s has %d bytes", name, len(files[name]))
		}
	}
	if _, asked := h.paths["/api/v1/namespaces/shop/pods/orders-1:9189/proxy/metrics"]; asked {
		t.Error("it reads the metrics of a sidecar that does not answer")
	}
}

// What is known of a clock is what agrees with every answer.
func TestCollector_comparesClocks(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		c := collector{facts: facts{ahead: map[string][2]time.Duration{}}}
		sent := time.Now()
		time.Sleep(300 * time.Millisecond)
		c.compare("a", sent, sent.Add(5*time.Second).UTC().Format(http.TimeFormat))
		c.compare("a", time.Now(), sent.Add(5*time.Second).UTC().Format(http.TimeFormat))
		c.compare("b", sent, "yesterday")
		want := map[string][2]time.Duration{"a": {4700 * time.Millisecond, 5700 * time.Millisecond}}
		if diff := cmp.Diff(want, c.facts.ahead); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestDoctor_redactsTheSameToTheSame(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "doctor.tar.gz")
	if code, text := call(t.Context(), "doctor", "--redact", "--archive", path, "--kubeconfig", serve(t, newHospital(t))); code != exitDone {
		t.Errorf("code %d: %s", code, text)
	}
	for name, content := range unpacked(t, path) {
		for _, word := range []string{"10.1.2.3", "fd00", "10-1-2-3", "shopper", "shop-db"} {
			if strings.Contains(content, word) {
				t.Errorf("%s has %q:\n%s", name, word, content)
			}
		}
	}
	files := []file{
		{"a/shop-db.log", `{"peer":"10.1.2.3:5432","user":"shopper","database":"shop-db"} [fd00::7] 127.0.0.1 ip-10-1-2-3 20:02:21 fd00::/64`},
		{"b", `user \"payer\", fd00::7: shopper shoppers app chief ignore: user=scanner client=10.1.2.4, \"database\":\"app\"`},
	}
	redact(files, []string{"chief"})
	want := []string{
		"a/name-3.log", `{"peer":"address-3:5432","user":"name-2","database":"name-3"} [address-1] 127.0.0.1 ip-address-3 20:02:21 address-2/64`,
		"b", `user \"name-4\", address-1: name-2 shoppers app name-1 ignore: user=name-5 client=address-4, \"database\":\"app\"`,
	}
	if diff := cmp.Diff(want, []string{files[0].name, files[0].content, files[1].name, files[1].content}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDoctor_saysWhatItCannotReadAndWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change func(*hospital)
		code   int
		says   string
	}{
		"what the user may not read is no failure": {
			func(h *hospital) { h.answers["/api/v1/namespaces/shop/services"] = os.ErrPermission }, exitDone,
			"Cannot read the Services of the namespace shop: permission denied.",
		},
		"a sidecar that the user may not ask is none": {
			func(h *hospital) {
				h.proxy = func(w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusForbidden, "Forbidden", "no") }
			},
			exitDone, "Cannot ask the sidecar of shop/orders-1: " + mayNotAsk,
		},
		"clocks that differ are found": {
			func(h *hospital) { h.date = time.Now().Add(time.Hour).UTC().Format(http.TimeFormat) }, exitFound,
			"The clocks of the API server and of the pod shop/orders-1 differ by 59m",
		},
		"a plugin that is not there is found": {
			func(h *hospital) { h.answers["/apis/apps/v1/deployments?app=scale-to-zero"] = appsv1.DeploymentList{} }, exitFound,
			"No Deployment of the plugin exists (https://github.com/cnpg-i/scale-to-zero/blob/main/docs/guides/install.md).",
		},
		"a namespace without such a Cluster is named": {
			func(h *hospital) {
				h.answers["/apis/postgresql.cnpg.io/v1/namespaces/shop/clusters"] = map[string]any{"apiVersion": "postgresql.cnpg.io/v1", "kind": "ClusterList", "items": []any{}}
			},
			exitDone, `No Cluster in the namespace "shop" lists the plugin.`,
		},
		"the plugin is asked in the operator's pod too": {
			func(h *hospital) {
				pods, _ := h.answers["/api/v1/namespaces/cnpg-system/pods?app=scale-to-zero"].(corev1.PodList)
				pods.Items[0].Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "scale-to-zero", ContainerPort: 8081}}
				h.answers["/api/v1/namespaces/cnpg-system/pods/plugin-1:8081/proxy/metrics"] = os.ErrPermission
			},
			exitDone, "Cannot read the metrics of cnpg-system/plugin-1: permission denied.",
		},
		"the Events of pods hide none of a Cluster": {
			func(h *hospital) {
				h.answers["/api/v1/namespaces/shop/events"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					var list corev1.EventList
					if r.URL.Query().Get("fieldSelector") == "involvedObject.kind=Cluster,reason=InstanceUnreachable" {
						list.Items = []corev1.Event{{
							InvolvedObject: corev1.ObjectReference{Namespace: "shop", Name: "orders"}, Reason: "InstanceUnreachable",
							LastTimestamp: metav1.Now(),
						}}
					}
					_ = json.NewEncoder(w).Encode(list)
				})
			},
			exitFound, "The gateway has not reached an instance of the Cluster shop/orders",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHospital(t)
			row.change(h)
			code, text := call(t.Context(), "doctor", "--no-archive", "--kubeconfig", serve(t, h))
			if code != row.code || !strings.Contains(text, row.says) {
				t.Errorf("code %d, it does not say %q:\n%s", code, row.says, text)
			}
			if strings.Contains(text, "The archive is") {
				t.Errorf("it has written an archive:\n%s", text)
			}
			var answer diagnosis
			_, text = call(t.Context(), "doctor", "--no-archive", "-o", "json", "--kubeconfig", serve(t, h))
			if err := json.NewDecoder(strings.NewReader(text)).Decode(&answer); err != nil || answer.Findings == nil {
				t.Errorf("%v: %s", err, text)
			}
		})
	}
}

// Names have any letters and signs, and end with their quotation mark.
func TestRedact_knowsWholeNames(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		`{"user":"étoilé"} étoilé,étoilé étoiléx réétoilé étoilé_`: `{"user":"name-1"} name-1,name-1 étoiléx réétoilé étoilé_`,
		`user="shop db!" shop db!`:                  `user="name-1" name-1`,
		`database \"shop, db\" is shop, db`:         `database \"name-1\" is name-1`,
		`"user":"","owner":"-x" (-x)`:               `"user":"","owner":"name-1" (name-1)`,
		`\"user\":\"\",\"owner\":\"a\",\"x\":\"b\"`: `\"user\":\"\",\"owner\":\"name-1\",\"x\":\"b\"`,
		`user=a user=a-b a-bc`:                      `user=name-1 user=name-2 name-1-bc`,
	} {
		files := []file{{"x", from}}
		redact(files, nil)
		if got := files[0].content; got != want {
			t.Errorf("%s becomes %s, not %s", from, got, want)
		}
	}
}

// Passwords in text are left out, and as little else as possible.
func TestCleanText(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		`host=a password=x user=b`:                           `host=a password=(left out) user=b`,
		`password = 'x\' y' user=b`:                          `password = (left out) user=b`,
		`PASSWORD="x y" b`:                                   `PASSWORD=(left out) b`,
		`ALTER ROLE a PASSWORD 'it''s x'; SELECT 1`:          `ALTER ROLE a PASSWORD (left out); SELECT 1`,
		`alter role a password E'x\' y'`:                     `alter role a password E(left out)`,
		`ALTER ROLE a PASSWORD 'x y`:                         `ALTER ROLE a PASSWORD (left out)`,
		`--password=x,y --host=a`:                            `--password=(left out) --host=a`,
		`1 {"password":"x y","a":1`:                          `1 {"password":(left out),"a":1`,
		`password authentication failed for user "a"`:        `password authentication failed for user "a"`,
		`postgres://a:x@y@z@host:5432/b?c=d@e`:               `postgres://a:(left out)@host:5432/b?c=d@e`,
		`postgres://a@b:x:y@host postgres://a@host http://c`: `postgres://a@b:(left out)@host postgres://a@host http://c`,
		`https://x@host/a http://x:y@host HTTPS://x:@host`:   `https://(left out)@host/a http://(left out)@host HTTPS://(left out)@host`,
		`{"a":"{\"token\":\"x\",\"b\":\"<c>\"}"}`:            `{"a":"{\"b\":\"<c>\",\"token\":\"(left out)\"}"}`,
		`12:00 password=x {"token":"x"}`:                     `12:00 password=(left out) {"token":"(left out)"}`,
		`12:00 password={"a":"x"}`:                           `12:00 password=(left out)`,
		`null`:                                               `null`,
		`{a`:                                                 `{a`,
	} {
		if got := cleanText(from); got != want {
			t.Errorf("%s becomes %s, not %s", from, got, want)
		}
	}
}

// A secret is known by its name, wherever it stands.
func TestClean(t *testing.T) {
	t.Parallel()
	var value any
	const from = `{"env":[{"name":"API_KEY","value":"x"},{"name":"MODE","value":"x"},{"name":"KEY","valueFrom":{"secretKeyRef":{"name":"a","key":"b"}}}],
"postInitSQL":["x"],"postInitApplicationSQL":["x"],"postInitTemplateSQL":["x"],"import":{"postImportApplicationSQL":["x"]},"postInitSQLRefs":{"secretRefs":[{"name":"x"}]},
"password":"x","passwordSecret":{"name":"a"},"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"x"}}`
	if err := json.Unmarshal([]byte(from), &value); err != nil {
		t.Fatal(err)
	}
	var want any
	if err := json.Unmarshal([]byte(strings.NewReplacer(`"API_KEY","value":"x"`, `"API_KEY","value":"(left out)"`, `"password":"x"`, `"password":"(left out)"`, `["x"]`, `"(left out)"`,
		`configuration":"x"`, `configuration":"(left out)"`).Replace(from)), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, clean(value)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
