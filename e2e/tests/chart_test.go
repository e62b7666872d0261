package tests

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/chart"
	"github.com/cnpg-i/scale-to-zero/e2e/install"
	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// toInstall bounds Helm's waits: a replica that cannot lead the clients of a cluster is ready after two minutes all the same.
const toInstall = 5 * time.Minute

// The chart replaces install.yaml, is upgraded while a cluster sleeps, and can be removed only once no cluster lists the
// plugin. It removes the plugin for everybody, so this test does not run in parallel.
func TestHelmChart(t *testing.T) {
	whole(t)
	s := alone(t)
	upgraded, err := scenario.Provided(s.ctx, "NEXT_TAG")
	if !errors.Is(err, scenario.ErrNotProvided) {
		s.must(err)
	}
	registry, tag := s.pluginImage()
	loaded, err := chart.Load("../../manifests/chart")
	s.must(err)
	values := map[string]any{"image": map[string]any{"registry": registry, "tag": tag}, "sidecarImage": map[string]any{"tag": tag}}
	helm, err := helmIn(scenario.OperatorNamespace, toInstall)
	s.must(err)
	used, asleep := s.cluster("used", 1), s.cluster("asleep", 1)
	s.together(used, asleep)
	s.sleeps(asleep)
	session, before := s.open(used, "rw"), s.lives(used)

	t.Cleanup(func() { s.ctx = cleanup(t); s.reinstall(helm, registry, tag) })
	began := time.Now()
	s.must(helm.install(s.ctx, loaded, values))
	t.Logf("installed in %.1fs", time.Since(began).Seconds())
	s.ownedByHelm()
	s.awaitSlices(asleep, toSettle, "rw", "r")

	began = time.Now()
	s.must(helm.upgrade(s.ctx, loaded, next(values, upgraded)))
	t.Logf("upgraded in %.1fs", time.Since(began).Seconds())
	if got := environment(s.plugin(), "LOG_LEVEL"); got != "debug" {
		t.Errorf("after the upgrade the level of the logs is %q", got)
	}
	s.must(session.Run("select 1"))
	if after := s.lives(used); !maps.Equal(before, after) {
		t.Errorf("the upgrade restarted the instance in use: %v, then %v", before, after)
	}
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(asleep), asleep))
	if !scenario.Hibernated(asleep) {
		t.Error("the upgrade woke the cluster that slept")
	}
	_, err = kube.QueryAs(s.ctx, asleep, "rw", fromAfar, "select 1")
	s.must(err)
	s.must(kube.AwaitHealthy(s.ctx, asleep, toHealthy))
	s.sleeps(asleep)

	s.refused(helm, used, asleep)
	s.must(helm.rollback(2))
	s.must(helm.upgrade(s.ctx, loaded, next(values, upgraded)))

	session.Close()
	for _, c := range []*cnpgv1.Cluster{used, asleep} {
		s.list(c)
	}
	returnLent(s.ctx)
	s.awaitUnused()
	began = time.Now()
	s.must(helm.uninstall(true))
	t.Logf("uninstalled in %.1fs", time.Since(began).Seconds())
	s.nothingIsLeft(asleep)
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(asleep), asleep))
	if !scenario.Hibernated(asleep) {
		t.Error("uninstalling woke the cluster that slept")
	}
	s.wake(asleep)
	if sidecar(s.instances(asleep)[0]) != nil {
		t.Error("the sidecar is still there after the plugin was uninstalled")
	}
}

// pluginImage returns the registry and the tag of the plugin's image.
func (s *story) pluginImage() (registry, tag string) {
	s.Helper()
	image := s.plugin().Spec.Template.Spec.Containers[0].Image
	registry, tag, ok := strings.Cut(image, "/"+install.PluginImage+":")
	if !ok {
		s.Skipf("the plugin's image has another name than the chart gives it: %s", image)
	}
	return registry, tag
}

// next returns the values with the tag of the next version, if there is one, and another log level.
func next(values map[string]any, tag string) map[string]any {
	changed := maps.Clone(values)
	changed["logLevel"] = "debug"
	if tag != "" {
		image := maps.Clone(values["image"].(map[string]any))
		image["tag"] = tag
		changed["image"] = image
	}
	return changed
}

// ownedByHelm checks that the plugin's Deployment belongs to the release.
func (s *disturber) ownedByHelm() {
	s.Helper()
	deployment := s.plugin()
	if deployment.Labels["app.kubernetes.io/managed-by"] != "Helm" || deployment.Annotations["meta.helm.sh/release-name"] != chart.Release {
		s.Errorf("the plugin's Deployment has the labels %v and the annotations %v", deployment.Labels, deployment.Annotations)
	}
}

// refused checks that the release cannot be removed while clusters list the plugin, and that these are named and keep working.
func (s *story) refused(helm *helm, used, asleep *cnpgv1.Cluster) {
	s.Helper()
	err := helm.uninstall(true)
	if err == nil {
		s.Fatal("the chart was uninstalled under the clusters that list the plugin")
	}
	for _, c := range []*cnpgv1.Cluster{used, asleep} {
		if !strings.Contains(err.Error(), c.Namespace+"/"+c.Name) {
			s.Errorf("the error does not name %s: %v", c.Name, err)
		}
	}
	s.rolledOut()
	s.awaitSlices(asleep, toSettle, "rw", "r")
}

// awaitUnused waits until no cluster lists the plugin: those of earlier tests may still be being deleted.
func (s *story) awaitUnused() {
	s.Helper()
	for deadline := time.Now().Add(toHealthy); ; pause(s, time.Second) {
		var clusters cnpgv1.ClusterList
		s.must(kube.List(s.ctx, &clusters))
		var users []string
		for i := range clusters.Items {
			for _, plugin := range clusters.Items[i].Spec.Plugins {
				if plugin.Name == scenario.PluginName {
					users = append(users, clusters.Items[i].Namespace+"/"+clusters.Items[i].Name)
				}
			}
		}
		if len(users) == 0 {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("the clusters of others still list the plugin: %v", users)
		}
	}
}

// nothingIsLeft checks that the plugin and its objects for the cluster are gone.
func (s *story) nothingIsLeft(c *cnpgv1.Cluster) {
	s.Helper()
	if found := s.slices(c); len(found) != 0 {
		s.Errorf("slices still lead to the gateway: %v", found)
	}
	s.must(kube.AwaitGone(s.ctx, &rbacv1.RoleList{}, s.namespace, c.Name+".scale-to-zero", toSettle))
	s.must(kube.AwaitGone(s.ctx, &appsv1.DeploymentList{}, scenario.OperatorNamespace, scenario.PluginDeployment, toSettle))
	s.must(kube.AwaitGone(s.ctx, &rbacv1.ClusterRoleList{}, "", "cnpg-scale-to-zero-plugin", toSettle))
}

// reinstall replaces the chart by install.yaml.
func (s *disturber) reinstall(helm *helm, registry, tag string) {
	s.Helper()
	if err := helm.uninstall(false); err != nil {
		s.Error(err)
	}
	rendered, err := install.Render("../../manifests/install", registry, tag)
	s.must(err)
	s.apply(rendered)
	s.rolledOut()
}
