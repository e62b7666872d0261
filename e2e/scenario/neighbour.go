package scenario

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// NeighbourContainer is the name of the sidecar that the other plugin injects.
const NeighbourContainer = "neighbour"

// Our plugin's Secrets and its port, which the other plugin uses too.
const (
	serverSecret  = "scaletozero-server-tls"
	clientSecret  = "scaletozero-client-tls"
	neighbourPort = 9090
)

// Neighbour is another plugin, from the image of e2e/neighbour.
type Neighbour struct {
	// Name is the plugin's name; the operator calls plugins in the order of their names.
	Name, Image string
	// Replaces makes it rebuild its sidecar at CREATE, as some plugins do; others keep the planned one.
	Replaces bool
	// Unprobed omits its sidecar's startup probe.
	Unprobed bool
}

// InstallNeighbour installs the plugin and waits until it serves. It uses our plugin's certificate: the operator takes the
// expected name from an annotation.
func (k *Kubernetes) InstallNeighbour(ctx context.Context, n Neighbour) error {
	for _, object := range []client.Object{neighbourService(n.Name), neighbourDeployment(n)} {
		if err := k.Create(ctx, object); err != nil {
			return fmt.Errorf("create the other plugin: %w", err)
		}
	}
	return k.AwaitDeployment(ctx, OperatorNamespace, n.Name, toStart)
}

// RemoveNeighbour removes the plugin; no cluster may list it any more.
func (k *Kubernetes) RemoveNeighbour(ctx context.Context, name string) error {
	return errors.Join(k.Delete(ctx, neighbourService(name)), k.Delete(ctx, neighbourDeployment(Neighbour{Name: name})))
}

func neighbourService(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: OperatorNamespace, Name: name, Labels: map[string]string{"cnpg.io/pluginName": name},
			Annotations: map[string]string{
				"cnpg.io/pluginClientSecret": clientSecret, "cnpg.io/pluginServerSecret": serverSecret,
				"cnpg.io/pluginServerName": PluginDeployment, "cnpg.io/pluginPort": fmt.Sprint(neighbourPort),
			},
		},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: neighbourPort}}},
	}
}

func neighbourDeployment(n Neighbour) *appsv1.Deployment {
	labels := map[string]string{"app": n.Name}
	secret := func(name string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}}
	}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: OperatorNamespace, Name: n.Name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					AutomountServiceAccountToken: ptr.To(false),
					SecurityContext:              &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), FSGroup: ptr.To(int64(65532))},
					Volumes:                      []corev1.Volume{secret(serverSecret), secret(clientSecret)},
					Containers: []corev1.Container{{
						Name: "neighbour", Image: n.Image, ImagePullPolicy: corev1.PullIfNotPresent,
						Args: []string{
							"operator", "-name=" + n.Name, "-image=" + n.Image, fmt.Sprintf("-address=:%d", neighbourPort),
							fmt.Sprintf("-replaces=%t", n.Replaces), fmt.Sprintf("-unprobed=%t", n.Unprobed),
						},
						VolumeMounts: []corev1.VolumeMount{
							{Name: serverSecret, MountPath: "/server", ReadOnly: true}, {Name: clientSecret, MountPath: "/client", ReadOnly: true},
						},
						ReadinessProbe: &corev1.Probe{
							ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(neighbourPort)}},
							PeriodSeconds: 1,
						},
					}},
				},
			},
		},
	}
}
