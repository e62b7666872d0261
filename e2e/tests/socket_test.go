package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	operatorDeployment = "cnpg-controller-manager"
	operatorAccount    = "cnpg-manager"
	// pluginRights is the ClusterRole of the plugin.
	pluginRights = "cnpg-scale-to-zero-plugin"
	// socketDirectory is where the operator looks for sockets when it starts.
	socketDirectory = "/plugins"
)

// The plugin in the operator's own pod serves over a Unix socket what its Deployment, which is gone meanwhile, serves over
// TCP. This test changes the operator and so does not run beside others.
func TestPluginInTheOperatorsPod(t *testing.T) {
	s := begin(t)
	plugin, operator := s.plugin(), s.deployment(operatorDeployment)
	s.letOperatorDoThePluginsWork()
	t.Cleanup(func() {
		s.ctx = cleanup(t)
		s.scalePlugin(*plugin.Spec.Replicas)
		s.labelPluginService(`"` + scenario.PluginName + `"`)
		s.setOperator(operator.Spec.Template)
	})
	s.labelPluginService("null") // a Service with that label would win over the socket
	s.scalePlugin(0)
	template := operator.Spec.Template.DeepCopy()
	addPlugin(&template.Spec, plugin.Spec.Template.Spec.Containers[0])
	s.setOperator(*template)

	c := s.running(kube.NewCluster(s.namespace, "socketed", 1, never))
	if sidecar(s.instances(c)[0]) == nil {
		t.Fatal("the instance has no sidecar")
	}
	session := s.open(c, "rw")
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	before, after := session.Close()
	s.asleepOnTime(c, before, after, threshold)
	s.annotate(c, scenario.InactivityMinutes, never)
	s.wake(c)
}

// addPlugin adds the plugin to the operator's pod, as an init container that stays: the operator looks for sockets only once.
func addPlugin(pod *corev1.PodSpec, plugin corev1.Container) {
	always := corev1.ContainerRestartPolicyAlways
	volume := corev1.VolumeMount{Name: "plugins", MountPath: socketDirectory}
	manager := &pod.Containers[0]
	manager.VolumeMounts = append(manager.VolumeMounts, volume)
	pod.Volumes = append(pod.Volumes, corev1.Volume{
		Name: volume.Name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
	})
	pod.InitContainers = append(pod.InitContainers, corev1.Container{
		Name: plugin.Name, Image: plugin.Image, ImagePullPolicy: plugin.ImagePullPolicy, Args: []string{"plugin"},
		Env: append(plugin.Env,
			corev1.EnvVar{Name: "PLUGIN_SOCKET_DIR", Value: socketDirectory},
			corev1.EnvVar{Name: "METRICS_ADDRESS", Value: ":8081"}), // the operator has 8080
		VolumeMounts: []corev1.VolumeMount{volume}, RestartPolicy: &always,
		SecurityContext: manager.SecurityContext, // the same user, to whom the socket belongs
		StartupProbe: &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromInt32(8081)}},
			PeriodSeconds: 1, FailureThreshold: 60,
		},
	})
}

// letOperatorDoThePluginsWork gives the operator's account the rights of the plugin's.
func (s *story) letOperatorDoThePluginsWork() {
	s.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: pluginRights},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: scenario.OperatorNamespace, Name: operatorAccount}},
	}
	s.must(kube.Create(s.ctx, binding))
	s.Cleanup(func() { s.must(kube.Delete(cleanup(s.T), binding)) })
}

// labelPluginService sets the label by which the operator finds the plugin over TCP; null removes it.
func (s *story) labelPluginService(value string) {
	s.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: scenario.OperatorNamespace, Name: scenario.PluginDeployment}}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"cnpg.io/pluginName":%s}}}`, value)
	s.must(kube.Patch(s.ctx, service, client.RawPatch(types.MergePatchType, patch)))
}

// setOperator replaces what the operator's pod is made of and waits until its webhooks answer.
func (s *story) setOperator(template corev1.PodTemplateSpec) {
	s.Helper()
	deployment := s.deployment(operatorDeployment)
	changed := deployment.DeepCopy()
	changed.Spec.Template = template
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(deployment)))
	s.awaitOperator()
}

// scaleOperator changes the number of the operator's pods.
func (s *story) scaleOperator(replicas int32) {
	s.Helper()
	deployment := s.deployment(operatorDeployment)
	changed := deployment.DeepCopy()
	changed.Spec.Replicas = &replicas
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(deployment)))
	s.awaitOperator()
}

// awaitOperator waits until the operator's pods are those of its Deployment and no others, which would still answer for a
// moment, and, if there are any, until its webhooks answer: kube-proxy learns of a ready pod a little later.
func (s *story) awaitOperator() {
	s.Helper()
	s.must(kube.AwaitDeployment(s.ctx, scenario.OperatorNamespace, operatorDeployment, 2*time.Minute))
	deployment := s.deployment(operatorDeployment)
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Minute)
	defer cancel()
	for {
		var pods corev1.PodList
		s.must(kube.List(ctx, &pods, client.InNamespace(scenario.OperatorNamespace), client.MatchingLabels(deployment.Spec.Selector.MatchLabels)))
		if len(pods.Items) == int(*deployment.Spec.Replicas) {
			break
		}
	}
	if *deployment.Spec.Replicas == 0 {
		return
	}
	for {
		err := kube.Create(ctx, kube.NewCluster(s.namespace, "probe", 1, never), client.DryRunAll)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			s.Fatalf("the operator's webhooks do not answer: %v", err)
		}
	}
}
