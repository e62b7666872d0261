package tests

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/cnpg-i/scale-to-zero/e2e/install"
	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const operatorDeployment = "cnpg-controller-manager"

// The plugin in the operator's own pod, as the component installs it, serves over a Unix socket what its Deployment, now gone,
// serves over TCP.
func TestPluginInTheOperatorsPod(t *testing.T) {
	whole(t)
	s := disturbing(t)
	d := s.turn()
	plugin, operator := s.plugin(), s.deployment(operatorDeployment)
	changed := s.withPlugin(operator, plugin.Spec.Template.Spec.Containers[0].Image)
	t.Cleanup(func() { s.ctx = cleanup(t); d.setOperator(operator.Spec.Template) })
	t.Cleanup(func() { s.ctx = cleanup(t); d.labelPluginService(`"` + scenario.PluginName + `"`) })
	t.Cleanup(func() { s.ctx = cleanup(t); d.scalePlugin(*plugin.Spec.Replicas) })
	d.labelPluginService("null") // a Service with that label would take precedence over the socket
	d.scalePlugin(0)
	d.setOperator(changed.Spec.Template)

	c := s.running(kube.NewCluster(s.namespace, "socketed", 1, never))
	if sidecar(s.instances(c)[0]) == nil {
		t.Fatal("the instance has no sidecar")
	}
	session := s.open(c, "rw")
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	before, after := session.Close()
	s.asleepOnTime(c, before, after, threshold)
	s.annotate(c, scenario.InactivityMinutes, never)
	_, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 1")
	s.must(err)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
}

// withPlugin returns the operator's Deployment as the component makes it, with the plugin's image. The component's other
// objects are created, and removed at the end.
func (s *story) withPlugin(operator *appsv1.Deployment, image string) *appsv1.Deployment {
	s.Helper()
	registry, tag, found := strings.Cut(image, "/cnpg-i-scale-to-zero:")
	if !found {
		s.Skipf("the plugin's image has another name than the component gives it: %s", image)
	}
	bare := &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: operator.Namespace, Name: operator.Name}, Spec: operator.Spec,
	}
	body, err := yaml.Marshal(bare)
	s.must(err)
	rendered, err := install.RenderInOperator("../../manifests/components/operator-socket", body, registry, tag)
	s.must(err)
	var changed appsv1.Deployment
	for document := range bytes.SplitSeq(rendered, []byte("\n---\n")) {
		var object unstructured.Unstructured
		s.must(yaml.Unmarshal(document, &object.Object))
		if object.GetKind() == bare.Kind {
			s.must(yaml.UnmarshalStrict(document, &changed))
			continue
		}
		err := kube.Create(s.ctx, &object)
		if apierrors.IsAlreadyExists(err) { // the RBAC objects, which the plugin's own account uses too
			continue
		}
		s.must(err)
		s.Cleanup(func() { s.must(kube.Delete(cleanup(s.T), &object)) })
	}
	return &changed
}

// labelPluginService sets the label by which the operator finds the plugin over TCP; null removes it.
func (s *disturber) labelPluginService(value string) {
	s.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: scenario.OperatorNamespace, Name: scenario.PluginDeployment}}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"cnpg.io/pluginName":%s}}}`, value)
	s.must(kube.Patch(s.ctx, service, client.RawPatch(types.MergePatchType, patch)))
}

// setOperator replaces the operator's pod template and waits until its webhooks answer.
func (s *disturber) setOperator(template corev1.PodTemplateSpec) {
	s.Helper()
	deployment := s.deployment(operatorDeployment)
	changed := deployment.DeepCopy()
	changed.Spec.Template = template
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(deployment)))
	s.awaitOperator()
}

// scaleOperator changes the number of the operator's replicas.
func (s *disturber) scaleOperator(replicas int32) {
	s.Helper()
	deployment := s.deployment(operatorDeployment)
	changed := deployment.DeepCopy()
	changed.Spec.Replicas = &replicas
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(deployment)))
	s.awaitOperator()
}

// awaitOperator waits until only pods of the current Deployment are left, because others would still answer for a moment, and, if there
// are any, until its webhooks answer: kube-proxy learns of a ready pod a little later.
func (s *story) awaitOperator() {
	s.Helper()
	s.must(kube.AwaitDeployment(s.ctx, scenario.OperatorNamespace, operatorDeployment, toHealthy))
	deployment := s.deployment(operatorDeployment)
	ctx, cancel := context.WithTimeout(s.ctx, toHealthy)
	defer cancel()
	for ; ; pause(s, pollEvery) {
		var pods corev1.PodList
		s.must(kube.List(ctx, &pods, client.InNamespace(scenario.OperatorNamespace), client.MatchingLabels(deployment.Spec.Selector.MatchLabels)))
		if len(pods.Items) == int(*deployment.Spec.Replicas) {
			break
		}
	}
	if *deployment.Spec.Replicas != 0 {
		s.must(kube.Create(s.ctx, kube.NewCluster(s.namespace, "probe", 1, never), client.DryRunAll))
	}
}
