package cnpgi

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

var update = flag.Bool("update", false, "write the golden files anew")

// What is added to the operator's own pod, in both forms.
func TestGoldenPods(t *testing.T) {
	t.Parallel()
	for name, sidecar := range map[string]Sidecar{"evaluate": placeholder(), "create": configured()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := instance(t)
			injected, err := injectSidecar(pod, sidecar)
			if err != nil {
				t.Fatal(err)
			}
			added := map[string]any{
				"containers": injected.Spec.Containers[len(pod.Spec.Containers):],
				"volumes":    injected.Spec.Volumes[len(pod.Spec.Volumes):],
			}
			got, err := yaml.Marshal(added)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(file, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("what is added (-want +got):\n%s", diff)
			}
			injected.Spec.Containers = injected.Spec.Containers[:len(pod.Spec.Containers)]
			injected.Spec.Volumes = injected.Spec.Volumes[:len(pod.Spec.Volumes)]
			if !equality.Semantic.DeepEqual(pod, injected) {
				t.Error("something else of the pod was changed")
			}
		})
	}
}

func TestInject(t *testing.T) {
	t.Parallel()
	inject := func(t *testing.T, pod *corev1.Pod, sidecar Sidecar) *corev1.Pod {
		t.Helper()
		injected, err := injectSidecar(pod, sidecar)
		if err != nil {
			t.Fatal(err)
		}
		return injected
	}
	t.Run("injecting twice is injecting once", func(t *testing.T) {
		t.Parallel()
		once := inject(t, instance(t), configured())
		if diff := cmp.Diff(once, inject(t, once, configured())); diff != "" {
			t.Errorf("the second time changes (-once +twice):\n%s", diff)
		}
	})
	t.Run("CREATE after EVALUATE is CREATE alone", func(t *testing.T) {
		t.Parallel()
		alone := inject(t, instance(t), configured())
		if diff := cmp.Diff(alone, inject(t, inject(t, instance(t), placeholder()), configured())); diff != "" {
			t.Errorf("the forms differ (-alone +after):\n%s", diff)
		}
	})
	t.Run("the forms differ in image, resources and environment only", func(t *testing.T) {
		t.Parallel()
		a, b := inject(t, instance(t), placeholder()), inject(t, instance(t), configured())
		last := len(a.Spec.Containers) - 1
		for _, c := range []*corev1.Container{&a.Spec.Containers[last], &b.Spec.Containers[last]} {
			c.Image, c.Resources, c.Env = "", corev1.ResourceRequirements{}, nil
		}
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("they differ (-evaluate +create):\n%s", diff)
		}
	})
	t.Run("neither data nor keys are mounted", func(t *testing.T) {
		t.Parallel()
		injected := inject(t, instance(t), configured())
		var paths []string
		for _, mount := range injected.Spec.Containers[len(injected.Spec.Containers)-1].VolumeMounts {
			paths = append(paths, mount.MountPath+" "+mount.SubPath)
		}
		want := []string{"/controller/run run", "/scale-to-zero ", "/var/run/secrets/kubernetes.io/serviceaccount "}
		if diff := cmp.Diff(want, paths); diff != "" {
			t.Errorf("mounts (-want +got):\n%s", diff)
		}
	})
	t.Run("the token is the sidecar's own where the operator mounts one for PostgreSQL only", func(t *testing.T) { // as in 1.31
		t.Parallel()
		pod := instance(t)
		pod.Spec.AutomountServiceAccountToken = ptr.To(false)
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "kube-api-access"})
		postgres := &pod.Spec.Containers[0]
		postgres.VolumeMounts = append(postgres.VolumeMounts, corev1.VolumeMount{Name: "kube-api-access", MountPath: contract.TokenDirectory})
		injected := inject(t, pod, configured())
		for _, mount := range injected.Spec.Containers[len(injected.Spec.Containers)-1].VolumeMounts {
			if mount.MountPath == contract.TokenDirectory && mount.Name != volumeToken || mount.Name == "kube-api-access" {
				t.Errorf("the sidecar mounts %s", mount.Name)
			}
		}
		if token := injected.Spec.Volumes[len(injected.Spec.Volumes)-1]; token.Name != volumeToken || token.Projected.Sources[0].ServiceAccountToken == nil {
			t.Errorf("the last volume is %+v", token)
		}
	})
	t.Run("the user of the PostgreSQL container is taken over where it has one", func(t *testing.T) {
		t.Parallel()
		pod := instance(t)
		pod.Spec.Containers[0].SecurityContext.RunAsUser = ptr.To(int64(1000))
		got := inject(t, pod, configured())
		if user := got.Spec.Containers[len(got.Spec.Containers)-1].SecurityContext.RunAsUser; user == nil || *user != 1000 {
			t.Errorf("the user is %v, want 1000", user)
		}
	})
	for rule, spoil := range map[string]func(*corev1.Pod){
		"a pod without the container is left as it is":   func(p *corev1.Pod) { p.Spec.Containers[0].Name = "other" },
		"a container without PGHOST is left as it is":    func(p *corev1.Pod) { p.Spec.Containers[0].Env = nil },
		"a socket outside of any mount is left as it is": func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts = nil },
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			pod := instance(t)
			spoil(pod)
			var missing *missingError
			if _, err := injectSidecar(pod, configured()); !errors.As(err, &missing) || missing.What == "" {
				t.Errorf("got %v, want what is missing", err)
			}
		})
	}
}
