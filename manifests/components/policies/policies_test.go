// Package policies holds the policies and their tests, which ask a real API server.
package policies

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/cnpg-i/scale-to-zero/internal/apiservertest"
)

// now is when the sidecar reads annotations and writes.
var now = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// server is an API server with the operator's resources and one of the components.
type server struct {
	t      testing.TB
	config *rest.Config
	scheme *runtime.Scheme
	admin  client.Client
}

// resources are those of the operator that the tests need.
var resources = []string{"clusters", "scheduledbackups", "backups", "databases", "poolers"}

// begin starts an API server with resources and a namespace; install adds the policies to what is there by then.
func begin(t testing.TB, resources ...string) *server {
	t.Helper()
	return connect(t, apiservertest.Start(t, resources...))
}

// connect is begin for an API server that has been started.
func connect(t testing.TB, config *rest.Config) *server {
	t.Helper()
	s := &server{t: t, scheme: runtime.NewScheme(), config: config}
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, cnpgv1.AddToScheme} {
		s.must(add(s.scheme))
	}
	admin, err := client.New(s.config, client.Options{Scheme: s.scheme})
	s.must(err)
	s.admin = admin
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	return s
}

func (s *server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) create(objects ...client.Object) {
	s.t.Helper()
	for _, object := range objects {
		s.must(s.admin.Create(s.t.Context(), object))
	}
}

// install applies what the component's kustomization lists.
func (s *server) install(component string) {
	s.t.Helper()
	for _, object := range s.objects(component) {
		s.create(object)
	}
}

// objects reads what the component's kustomization lists.
func (s *server) objects(component string) (objects []*unstructured.Unstructured) {
	s.t.Helper()
	var kustomization struct{ Resources []string }
	read := func(name string) []byte {
		body, err := os.ReadFile(filepath.Join(component, name))
		s.must(err)
		return body
	}
	s.must(yaml.Unmarshal(read("kustomization.yaml"), &kustomization))
	for _, name := range kustomization.Resources {
		for _, document := range bytes.Split(read(name), []byte("\n---\n")) {
			var object unstructured.Unstructured
			s.must(yaml.UnmarshalStrict(document, &object.Object))
			objects = append(objects, &object)
		}
	}
	return objects
}

// as is a client of somebody else.
func (s *server) as(change func(*rest.Config)) client.Client {
	s.t.Helper()
	config := rest.CopyConfig(s.config)
	change(config)
	c, err := client.New(config, client.Options{Scheme: s.scheme, Mapper: s.admin.RESTMapper()})
	s.must(err)
	return c
}

// comes waits until the API server has learned something; it fails the test after a while.
func (s *server) comes(what string, come func() bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !come() {
		select {
		case <-ctx.Done():
			s.t.Fatalf("it does not come that %s", what)
		case <-tick.C:
		}
	}
}

// byPolicy tells whether the error is a policy's refusal, and not the answer to an expression that could not be evaluated.
func byPolicy(err error) bool {
	return err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'cnpg-scale-to-zero-") &&
		strings.Contains(err.Error(), "denied request: ") && !strings.Contains(err.Error(), "resulted in error")
}

// cluster is a Cluster that lists those plugins.
func cluster(namespace, name, account string, plugins ...string) *cnpgv1.Cluster {
	c := &cnpgv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{"team": "red"}, Finalizers: []string{"example.org/keep"},
			Annotations: map[string]string{"xata.io/scale-to-zero-enabled": "true", "example.org/note": "x"},
		},
		Spec: cnpgv1.ClusterSpec{
			Instances: 2, ImageName: "example.org/postgresql:17.5", ServiceAccountName: account,
			StorageConfiguration: cnpgv1.StorageConfiguration{Size: "1Gi"},
		},
	}
	for _, plugin := range plugins {
		c.Spec.Plugins = append(c.Spec.Plugins, cnpgv1.PluginConfiguration{Name: plugin})
	}
	return c
}

func instance(namespace, cluster string, number int, account string) *corev1.Pod {
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	resources := corev1.ResourceRequirements{Requests: list("500m", "512Mi"), Limits: list("1", "1Gi")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%d", cluster, number)},
		Spec: corev1.PodSpec{ServiceAccountName: account, Containers: []corev1.Container{
			{Name: "postgres", Image: "example.org/c", Resources: resources},
			{Name: "scale-to-zero", Image: "example.org/c", Resources: resources},
		}},
	}
}

// The API server applies a policy to a write once for each of its parameters: those of a kind in the namespace that the
// binding selects. A match condition leaves out the others at a quarter of what a validation costs.
func TestPolicies_findTheirParameterByAMatchCondition(t *testing.T) {
	t.Parallel()
	s, policies := &server{t: t}, 0
	for _, component := range []string{"annotations", "instances", "plugin"} {
		for _, object := range s.objects(component) {
			if kind, found, _ := unstructured.NestedString(object.Object, "spec", "paramKind", "kind"); found {
				policies++
				conditions, _, _ := unstructured.NestedSlice(object.Object, "spec", "matchConditions")
				if !strings.Contains(fmt.Sprint(conditions), "params.") {
					t.Errorf("%s applies its validations to each %s of the namespace", object.GetName(), kind)
				}
			}
		}
	}
	if policies == 0 {
		t.Error("no policy has parameters")
	}
}
