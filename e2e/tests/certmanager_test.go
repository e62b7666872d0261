package tests

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/cnpg-i/scale-to-zero/e2e/chart"
	"github.com/cnpg-i/scale-to-zero/e2e/install"
	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// The component of cert-manager replaces the certificates of the project's own making: cert-manager's controllers issue both, the
// operator and the plugin accept each other with them, and a cluster sleeps and is woken.
func TestCertManager_issuesWhatBothSidesAccept(t *testing.T) {
	whole(t)
	s := disturbing(t)
	directory, image := provided(t, "CERT_MANAGER_CHART"), provided(t, "CERT_MANAGER_IMAGE")
	s.certManager(directory, image)
	d := s.turn()
	registry, tag := s.pluginImage()
	ours, err := install.With("../../manifests", registry, tag, "cert-manager", "policies/instances", "policies/plugin")
	s.must(err)

	t.Cleanup(func() {
		s.ctx = cleanup(t)
		d.removeCertificates()
		d.restore(registry, tag)
	})
	s.must(kube.Delete(s.ctx, s.deployment(certificates)))
	d.removeSecrets()
	began := time.Now()
	s.apply(ours)
	d.restart(scenario.PluginDeployment) // its files would be the last certificates' until the kubelet looks again
	for _, name := range []string{serverSecret, clientSecret} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: scenario.OperatorNamespace, Name: name}}
		_, err := scenario.Await(s.ctx, kube, secret, "issued", toHealthy, func(secret *corev1.Secret) bool {
			return len(secret.Data[corev1.TLSCertKey]) != 0 && secret.Annotations["cert-manager.io/issuer-name"] == "scale-to-zero"
		})
		s.must(err)
	}
	t.Logf("both certificates were issued after %.1fs", time.Since(began).Seconds())
	s.rolledOut()
	s.served(s.secret(serverSecret).Data[corev1.TLSCertKey])
	t.Logf("every replica of the plugin served its certificate after %.1fs", time.Since(began).Seconds())

	c := s.running(kube.NewCluster(s.namespace, "certified", 1, never))
	if sidecar(s.instances(c)[0]) == nil {
		t.Fatal("the operator did not ask the plugin about the pod")
	}
	s.sleeps(c)
	_, err = kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 1")
	s.must(err)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
}

// certManager installs cert-manager in the test's namespace, and removes it at the end.
func (s *story) certManager(directory, image string) {
	s.Helper()
	s.onlyHere()
	loaded, err := chart.Load(directory)
	s.must(err)
	repository, tag, _ := strings.Cut(image, ":")
	component := func(name string) map[string]any {
		return map[string]any{
			"image":    map[string]any{"repository": repository, "tag": tag},
			"extraEnv": []any{map[string]any{"name": "COMPONENT", "value": name}},
		}
	}
	values := component("controller")
	values["webhook"], values["cainjector"] = component("webhook"), component("cainjector")
	values["crds"] = map[string]any{"enabled": true, "keep": false}
	values["startupapicheck"] = map[string]any{"enabled": false}
	helm, err := helmIn(s.namespace, toInstall)
	s.must(err)
	s.Cleanup(func() {
		if err := helm.uninstall(false); err != nil {
			s.Error(err)
		}
	})
	began := time.Now()
	s.must(helm.install(s.ctx, loaded, values))
	issuer := certManagerObject("Issuer")
	s.must(unstructured.SetNestedMap(issuer.Object, map[string]any{}, "spec", "selfSigned"))
	issuer.SetNamespace(s.namespace)
	issuer.SetName("probe")
	for deadline := time.Now().Add(toInstall); ; pause(s, 100*time.Millisecond) { // until its webhook has a certificate that the API server trusts
		err := kube.Create(s.ctx, issuer.DeepCopy(), client.DryRunAll)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			s.Fatalf("cert-manager's webhook does not answer: %v", err)
		}
	}
	s.Logf("cert-manager was installed in %.1fs", time.Since(began).Seconds())
}

func certManagerObject(kind string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: "cert-manager.io", Version: "v1", Kind: kind})
	return object
}

// removeCertificates removes the component's objects and what cert-manager made for them.
func (s *disturber) removeCertificates() {
	s.Helper()
	for _, kind := range []string{"Certificate", "Issuer"} {
		s.must(kube.DeleteAllOf(s.ctx, certManagerObject(kind), client.InNamespace(scenario.OperatorNamespace)))
	}
	s.removeSecrets()
}

func (s *disturber) removeSecrets() {
	s.Helper()
	for _, name := range []string{serverSecret, clientSecret} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: scenario.OperatorNamespace, Name: name}}
		s.must(client.IgnoreNotFound(kube.Delete(s.ctx, secret)))
	}
}

// restore installs install.yaml again, and waits until the plugin serves with certificates of the project's own making.
func (s *disturber) restore(registry, tag string) {
	s.Helper()
	rendered, err := install.Render("../../manifests/install", registry, tag)
	s.must(err)
	s.apply(rendered)
	s.restart(scenario.PluginDeployment)
	s.must(kube.AwaitDeployment(s.ctx, scenario.OperatorNamespace, certificates, toHealthy))
	s.rolledOut()
	s.served(s.secret(serverSecret).Data[corev1.TLSCertKey])
}

// apply applies rendered manifests, like kubectl apply --server-side --force-conflicts.
func (s *story) apply(rendered []byte) {
	s.Helper()
	for document := range bytes.SplitSeq(rendered, []byte("\n---\n")) {
		var object unstructured.Unstructured
		s.must(yaml.Unmarshal(document, &object.Object))
		s.must(kube.Apply(s.ctx, client.ApplyConfigurationFromUnstructured(&object), client.ForceOwnership, client.FieldOwner("kubectl")))
	}
}
