package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// unsampled are the samples that are left out: those that match a pattern need what the reason names.
var unsampled = []struct{ reason, pattern string }{
	{"an object store", `barmanObjectStore|barman-cloud`},
	{"volume snapshots", `volumeSnapshot`},
	{"another cluster", `externalClusters`},
	{"a Backup", `recovery:`},
	{"cert-manager", `cert-manager\.io/`},
	{"an image with an extension or a locale", `postgis|localeCollate`},
}

// Every sample of CloudNativePG's documentation with a Cluster, but those that need what is not here, falls asleep, and a client wakes it. The
// image is the tests' own, as is the class of the volumes, and PodMonitors are not made.
func TestSamplesSleepAndWake(t *testing.T) {
	whole(t)
	if !soaking {
		t.Skip("these are some sixty instances: make soak")
	}
	module, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/cloudnative-pg/cloudnative-pg").Output()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(strings.TrimSpace(string(module)) + "/docs/src/samples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	isCluster := regexp.MustCompile(`(?m)^kind: Cluster$`)
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !isCluster.Match(content) {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			for _, row := range unsampled {
				if regexp.MustCompile(row.pattern).Match(content) {
					t.Skipf("it needs %s", row.reason)
				}
			}
			t.Parallel()
			s := begin(t)
			c := s.samples(string(content))
			s.must(kube.StartClientPod(s.ctx, c))
			s.sleeps(c)
			_, err := kube.Client(s.ctx, s.namespace, "pg_isready -t 240 -h "+c.Name+"-rw")
			s.must(err)
			s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
			s.awaitSlices(c, between+toSettle)
		})
	}
}

// samples makes what a sample has, lists the plugin in its Cluster, and waits until that is healthy.
func (s *story) samples(content string) *cnpgv1.Cluster {
	s.Helper()
	for _, change := range []struct{ pattern, by string }{
		{`(?m)^ *storageClass(Name)?: .*\n`, ""},
		{`\S*/postgresql:1[578]\S*`, kube.PostgresImage},
		{`\S*/pgbouncer:\S*`, kube.PgBouncerImage},
		{`major: 1[58]`, "major: " + major()},
	} {
		content = regexp.MustCompile(change.pattern).ReplaceAllLiteralString(content, change.by)
	}
	defer s.placeToStart()()
	c := &cnpgv1.Cluster{}
	for document := range strings.SplitSeq(content, "\n---\n") {
		object := &unstructured.Unstructured{}
		s.must(yaml.Unmarshal([]byte(document), &object.Object))
		switch object.GetKind() {
		case "", "PodMonitor":
			continue
		case "ClusterImageCatalog":
			s.Cleanup(func() { _ = kube.Delete(cleanup(s.T), object) })
		case cnpgv1.ClusterKind:
			like := kube.NewCluster(s.namespace, object.GetName(), 0, never)
			object.SetAnnotations(like.Annotations)
			plugins := []any{map[string]any{"name": scenario.PluginName}}
			s.must(unstructured.SetNestedSlice(object.Object, plugins, "spec", "plugins"))
			s.must(unstructured.SetNestedField(object.Object, "IfNotPresent", "spec", "imagePullPolicy"))
			if _, catalogue, _ := unstructured.NestedMap(object.Object, "spec", "imageCatalogRef"); !catalogue {
				s.must(unstructured.SetNestedField(object.Object, kube.PostgresImage, "spec", "imageName"))
			}
			c.Namespace, c.Name = s.namespace, object.GetName()
			fallthrough
		default:
			object.SetNamespace(s.namespace)
		}
		s.must(kube.Create(s.ctx, object))
	}
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	return c
}
