package cnpgi

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// The names, mounts and volumes injected are an interface: changing one of them rolls every instance.
const (
	containerName = "scale-to-zero"
	volumeOwn     = "scale-to-zero"
	volumeToken   = "scale-to-zero-token"
	portName      = "scale-to-zero"
	// port differs from the operator's 8000 and 9187 and the reference project's 9188.
	port = contract.SidecarPort
	// tokenSeconds is the lifetime of the token, which the kubelet rotates.
	tokenSeconds = 3600
	// placeholderImage stands for the real image and is never pulled.
	placeholderImage = "scale-to-zero.invalid/sidecar:placeholder"
)

// Sidecar holds the parts of the sidecar that depend on the plugin's settings.
type Sidecar struct {
	// Image, Resources and LogLevel are those of the container.
	Image     string
	Resources Sidecars
	LogLevel  string
	// Group and Version are those of the Cluster resource.
	Group, Version string
	// DozeMemory is PostgreSQL's memory request while its cluster dozes; empty if it stays as it is.
	DozeMemory string
}

// placeholder is the constant sidecar for EVALUATE. The operator compares EVALUATE's answers only with each other, so
// that no setting and no new image rolls a running database.
func placeholder() Sidecar {
	quantities := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
	}
	resources := corev1.ResourceRequirements{Requests: quantities, Limits: quantities}
	return Sidecar{
		Image: placeholderImage, Resources: Sidecars{Burstable: resources, Guaranteed: resources},
		LogLevel: "info", Group: contract.DefaultCNPGGroup, Version: contract.DefaultCNPGVersion,
	}
}

// SidecarImage returns the image of the pod's sidecar, or empty if it has none.
func SidecarImage(pod *corev1.Pod) string {
	if sidecar := named(pod, containerName); sidecar != nil {
		return sidecar.Image
	}
	return ""
}

// named returns the pod's container of that name, or nil.
func named(pod *corev1.Pod, name string) *corev1.Container {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return &pod.Spec.Containers[i]
		}
	}
	return nil
}

// OnlySidecar returns the pod's containers reduced to what SidecarImage needs.
func OnlySidecar(pod *corev1.Pod) []corev1.Container {
	if image := SidecarImage(pod); image != "" {
		return []corev1.Container{{Name: containerName, Image: image}}
	}
	return nil
}

// missingError means that the pod lacks something that the sidecar needs.
type missingError struct{ What string }

// Error names what is missing.
func (e *missingError) Error() string { return "the pod has no " + e.What }

// injectSidecar returns a copy of the pod with the sidecar after the other containers. An existing sidecar is replaced
// by name, which makes it idempotent. Errors are *[missingError].
func injectSidecar(pod *corev1.Pod, sidecar Sidecar) (*corev1.Pod, error) {
	postgres := named(pod, contract.PostgresContainer)
	if postgres == nil {
		return nil, &missingError{fmt.Sprintf("container %q", contract.PostgresContainer)}
	}
	socket, err := socketMount(postgres)
	if err != nil {
		return nil, err
	}
	injected := pod.DeepCopy()
	setByName(&injected.Spec.Containers, container(postgres, socket, sidecar, sidecar.Resources.In(guaranteed(pod))),
		func(c corev1.Container) string { return c.Name })
	for _, volume := range volumes() {
		setByName(&injected.Spec.Volumes, volume, func(v corev1.Volume) string { return v.Name })
	}
	return injected, nil
}

// setByName replaces the item of the same name, or appends it.
func setByName[T any](items *[]T, item T, name func(T) string) {
	index := slices.IndexFunc(*items, func(other T) bool { return name(other) == name(item) })
	if index < 0 {
		*items = append(*items, item)
		return
	}
	(*items)[index] = item
}

// socketMount returns a mount of only the part of the PostgreSQL container's volumes that holds its socket, without the
// data, the certificates and the keys.
func socketMount(postgres *corev1.Container) (corev1.VolumeMount, error) {
	directory := path.Clean(variable(postgres, contract.EnvSocketDirectory))
	if !path.IsAbs(directory) {
		return corev1.VolumeMount{}, &missingError{fmt.Sprintf("absolute PGHOST in container %q", contract.PostgresContainer)}
	}
	var found *corev1.VolumeMount
	for i := range postgres.VolumeMounts {
		mount := &postgres.VolumeMounts[i]
		covers := directory == mount.MountPath || strings.HasPrefix(directory, strings.TrimSuffix(mount.MountPath, "/")+"/")
		if covers && (found == nil || len(mount.MountPath) > len(found.MountPath)) {
			found = mount
		}
	}
	if found == nil {
		return corev1.VolumeMount{}, &missingError{fmt.Sprintf("volume mounted at %s, where container %q has its socket (PGHOST)", directory, contract.PostgresContainer)}
	}
	relative := strings.TrimPrefix(strings.TrimPrefix(directory, found.MountPath), "/")
	return corev1.VolumeMount{Name: found.Name, MountPath: directory, SubPath: path.Join(found.SubPath, relative)}, nil
}

func variable(c *corev1.Container, name string) string {
	for _, v := range c.Env {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

func container(
	postgres *corev1.Container, socket corev1.VolumeMount, sidecar Sidecar, resources corev1.ResourceRequirements,
) corev1.Container {
	return corev1.Container{
		Name: containerName, Image: sidecar.Image, ImagePullPolicy: corev1.PullIfNotPresent,
		Ports: []corev1.ContainerPort{{Name: portName, ContainerPort: port, Protocol: corev1.ProtocolTCP}},
		Env:   environment(postgres, socket, sidecar),
		VolumeMounts: []corev1.VolumeMount{
			socket,
			{Name: volumeOwn, MountPath: contract.SidecarDirectory},
			{Name: volumeToken, MountPath: contract.TokenDirectory, ReadOnly: true},
		},
		Resources:       resources,
		SecurityContext: securityContext(postgres),
		// No probe but that of [prepareSidecar]: a container that is not ready makes its pod not ready, which
		// removes it from -rw and prevents failover.
		Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{
			Exec: &corev1.ExecAction{Command: []string{"/sidecar", "drain"}},
		}},
	}
}

func environment(postgres *corev1.Container, socket corev1.VolumeMount, sidecar Sidecar) []corev1.EnvVar {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
	}
	environment := []corev1.EnvVar{
		field(contract.EnvNamespace, "metadata.namespace"),
		field(contract.EnvCluster, "metadata.labels['cnpg.io/cluster']"),
		field(contract.EnvPod, "metadata.name"),
		field(contract.EnvPodUID, "metadata.uid"),
		{Name: contract.EnvSocketDirectory, Value: socket.MountPath},
		{Name: contract.EnvPreStopMarker, Value: path.Join(socket.MountPath, markerFile)},
		{Name: contract.EnvLogLevel, Value: sidecar.LogLevel},
		{Name: contract.EnvCNPGGroup, Value: sidecar.Group},
		{Name: contract.EnvCNPGVersion, Value: sidecar.Version},
		{Name: contract.EnvMemoryLimit, ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{
			ContainerName: containerName, Resource: "limits.memory", Divisor: resource.MustParse("1"),
		}}},
	}
	if number := variable(postgres, contract.EnvPostgresPort); number != "" {
		environment = append(environment, corev1.EnvVar{Name: contract.EnvPostgresPort, Value: number})
	}
	return environment
}

// securityContext permits nothing. The user is the pod's, because the socket admits only the user that PostgreSQL runs
// as; it is copied if the PostgreSQL container sets its own.
func securityContext(postgres *corev1.Container) *corev1.SecurityContext {
	c := &corev1.SecurityContext{
		RunAsNonRoot: ptr.To(true), ReadOnlyRootFilesystem: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false),
		Privileged: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	if own := postgres.SecurityContext; own != nil {
		c.RunAsUser, c.RunAsGroup = own.RunAsUser, own.RunAsGroup
	}
	return c
}

func volumes() []corev1.Volume {
	return []corev1.Volume{
		{Name: volumeOwn, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("1Mi"))}}},
		{Name: volumeToken, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			DefaultMode: ptr.To(int32(0o444)),
			Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To(int64(tokenSeconds))}},
				{ConfigMap: &corev1.ConfigMapProjection{
					LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
					Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
				}},
			},
		}}},
	}
}

// markerFile is the file that the sidecar creates in the socket's directory before it turns hibernation on.
const markerFile = ".scale-to-zero-asleep"

// preStopScript delays PostgreSQL's shutdown by two seconds if the marker file exists: kube-proxy may need that long to
// reroute a Service (its minimum sync interval is a second). At any other deletion of the pod it only checks for the
// file.
const preStopScript = `test ! -e "$PGHOST/` + markerFile + `" || exec sleep 2`

// addPreStopHook adds a preStop hook to the PostgreSQL container, unless it has one. The hook needs a shell in the
// image; without one the kubelet writes an Event and continues.
func addPreStopHook(pod *corev1.Pod) {
	postgres := named(pod, contract.PostgresContainer)
	if postgres == nil || postgres.Lifecycle != nil && postgres.Lifecycle.PreStop != nil {
		return
	}
	if postgres.Lifecycle == nil {
		postgres.Lifecycle = &corev1.Lifecycle{}
	}
	postgres.Lifecycle.PreStop = &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", preStopScript}}}
}
