package tests

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	jsonpatch "github.com/evanphx/json-patch/v5"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// The messages of the policies that refuse an instance.
const (
	noSpec        = "instances may not change the specification of their Cluster"
	notPrimary    = "instances may change their Cluster only from the pod that is its current primary"
	onlyOwn       = "instances may change ScheduledBackups of their own cluster only"
	onlySuspend   = "instances may change nothing of the specification of a ScheduledBackup but suspend"
	ofThePrimary  = "instances may change a ScheduledBackup only from the pod that is the current primary of its cluster"
	noAnnotations = "instances may not change the annotation "
)

// An instance's token can change only what the sidecar changes. The policies of the plugin's account apply too; the tests in
// manifests/components/policies cover each of their rules.
func TestInstancesAreLimited(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(2, awake)
	other := kube.NewCluster(s.namespace, "neighbour", 1, never)
	other.Annotations["cnpg.io/reconciliationLoop"] = "disabled" // its pods are not needed
	s.must(kube.Create(s.ctx, other))
	s.Cleanup(func() { _ = kube.Delete(cleanup(t), other) })
	s.must(kube.Create(s.ctx, scenario.NewScheduledBackup(c, c.Name, "0 0 0 1 1 *")))
	s.must(kube.Create(s.ctx, scenario.NewScheduledBackup(other, "neighbour", "0 0 0 1 1 *")))
	primary, standby := c.Status.CurrentPrimary, replicaOf(c)

	cnpg, core, rbac := "/apis/"+cnpgGroup+"/v1/namespaces/", "/api/v1/namespaces/", "/apis/rbac.authorization.k8s.io/v1/namespaces/"
	ours, neighbours := cnpg+s.namespace+"/clusters/"+c.Name, cnpg+s.namespace+"/clusters/neighbour"
	schedule, foreign := cnpg+s.namespace+"/scheduledbackups/"+c.Name, cnpg+s.namespace+"/scheduledbackups/neighbour"
	annotation := func(key, value string) string { return fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value) }
	hibernationOn := annotation(scenario.Hibernation, "on")
	rights := `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"more"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"admin"}}`
	rows := []limit{
		{"another image", primary, http.MethodPatch, ours, `{"spec":{"imageName":"example.org/other:17"}}`, noSpec},
		{"more instances", primary, http.MethodPatch, ours, `{"spec":{"instances":5}}`, noSpec},
		{"no plugins", primary, http.MethodPatch, ours, `{"spec":{"plugins":[]}}`, noSpec},
		{"larger storage", primary, http.MethodPatch, ours, `{"spec":{"storage":{"size":"2Gi"}}}`, noSpec},
		{"superuser access", primary, http.MethodPatch, ours, `{"spec":{"enableSuperuserAccess":true}}`, noSpec},
		{"a parameter", primary, http.MethodPatch, ours, `{"spec":{"postgresql":{"parameters":{"work_mem":"64MB"}}}}`, noSpec},
		{"rules of pg_hba", primary, http.MethodPatch, ours, `{"spec":{"postgresql":{"pg_hba":["host all all all trust"]}}}`, noSpec},
		{"resources", primary, http.MethodPatch, ours, `{"spec":{"resources":{"limits":{"cpu":"9"}}}}`, noSpec},
		{"another service account", primary, http.MethodPatch, ours, `{"spec":{"serviceAccountName":"default"}}`, noSpec},
		{"a label", primary, http.MethodPatch, ours, `{"metadata":{"labels":{"team":"mine"}}}`, "instances may not change the labels of their Cluster"},
		{"a finalizer", primary, http.MethodPatch, ours, `{"metadata":{"finalizers":["example.org/keep"]}}`, "instances may not change the finalizers of their Cluster"},
		{"an owner", primary, http.MethodPatch, ours, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"x"}]}}`, "instances may not change the owners of their Cluster"},
		{"the threshold", primary, http.MethodPatch, ours, annotation(scenario.InactivityMinutes, "1"), noAnnotations + scenario.InactivityMinutes},
		{"turning the feature off", primary, http.MethodPatch, ours, annotation(scenario.Enabled, "false"), noAnnotations + scenario.Enabled},
		{"the gateway's acknowledgement", primary, http.MethodPatch, ours, annotation("xata.io/scale-to-zero-gateway-ready", "x"), noAnnotations + "xata.io/scale-to-zero-gateway-ready"},
		{"who woke it", primary, http.MethodPatch, ours, annotation("xata.io/scale-to-zero-last-wake", "{}"), noAnnotations + "xata.io/scale-to-zero-last-wake"},
		{"somebody's annotation", primary, http.MethodPatch, ours, annotation("example.org/x", "y"), noAnnotations + "example.org/x"},
		{"fencing by names, which no doze does", primary, http.MethodPatch, ours, annotation(scenario.Fence, `["`+primary+`"]`), "instances may set the annotation " + scenario.Fence + " of their Cluster to [\"*\"] and remove that, and nothing else"},
		{"hibernation, from a standby", standby, http.MethodPatch, ours, hibernationOn, notPrimary},
		{"the schedule's times", primary, http.MethodPatch, schedule, `{"spec":{"schedule":"0 0 0 2 2 *"}}`, onlySuspend},
		{"the schedule's method", primary, http.MethodPatch, schedule, `{"spec":{"method":"volumeSnapshot"}}`, onlySuspend},
		{"suspending, from a standby", standby, http.MethodPatch, schedule, `{"spec":{"suspend":true}}`, ofThePrimary},
		{"another cluster's schedule", primary, http.MethodPatch, foreign, `{"spec":{"suspend":true}}`, onlyOwn},
		{"another cluster's hibernation", primary, http.MethodPatch, neighbours, hibernationOn, `cannot patch resource "clusters"`},
		{"a cluster of another namespace", primary, http.MethodPatch, cnpg + "default/clusters/" + c.Name, hibernationOn, `cannot patch resource "clusters"`},
		{"a schedule of another namespace", primary, http.MethodPatch, cnpg + "default/scheduledbackups/" + c.Name, `{"spec":{"suspend":true}}`, `cannot patch resource "scheduledbackups"`},
		{"its Cluster away", primary, http.MethodDelete, ours, "", `cannot delete resource "clusters"`},
		{"its schedule away", primary, http.MethodDelete, schedule, "", `cannot delete resource "scheduledbackups"`},
		{"its pod away", primary, http.MethodDelete, core + s.namespace + "/pods/" + standby, "", `cannot delete resource "pods"`},
		{"its rights", primary, http.MethodPatch, rbac + s.namespace + "/roles/" + c.Name + ".scale-to-zero", `{"rules":[]}`, `cannot patch resource "roles"`},
		{"who has which rights", primary, http.MethodPost, rbac + s.namespace + "/rolebindings", rights, `cannot create resource "rolebindings"`},
		{"nothing, but reads another cluster's password", primary, http.MethodGet, core + s.namespace + "/secrets/neighbour-app", "", `cannot get resource "secrets"`},
		{"nothing, but lists Secrets", primary, http.MethodGet, core + s.namespace + "/secrets", "", `cannot list resource "secrets"`},
	}
	for i, answer := range s.ask(rows) {
		row := rows[i]
		if dropped := answer.code == http.StatusOK && row.rule == "another service account" && !s.has(answer.body, row.body); dropped {
			continue // operators before 1.30 do not have this field
		}
		if message := answer.message(); answer.code != http.StatusForbidden || !strings.Contains(message, row.says) {
			t.Errorf("an instance changes %s: %d %s; want a refusal that says %q", row.rule, answer.code, message, row.says)
		}
	}

	image := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"imageName":"example.org/other:17"}}`))
	err := s.asPlugin().Patch(s.ctx, c.DeepCopy(), image, client.DryRunAll)
	if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'cnpg-scale-to-zero-plugin-") {
		t.Errorf("the plugin's account changes the image: %v; want a refusal by its policies", err)
	}

	soon, now := time.Now().Add(time.Minute).UTC().Format(time.RFC3339), time.Now().UTC().Format(time.RFC3339)
	rows = []limit{
		{"keep its cluster awake", primary, http.MethodPatch, ours, annotation(scenario.KeepAwakeUntil, soon), ""},
		{"suspend its schedule", primary, http.MethodPatch, schedule, `{"metadata":{"annotations":{"` + scenario.Suspended + `":"` + now + `"}},"spec":{"suspend":true}}`, ""},
		{"turn its cluster's hibernation on", primary, http.MethodPatch, ours, hibernationOn, ""},
	}
	for i, answer := range s.ask(rows) {
		if answer.code != http.StatusOK || !s.has(answer.body, rows[i].body) {
			t.Errorf("an instance may not %s: %d %s", rows[i].rule, answer.code, answer.message())
		}
	}
}

// asPlugin returns a client with a token of the plugin's service account.
func (s *story) asPlugin() client.Client {
	s.Helper()
	request := &authenticationv1.TokenRequest{}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: scenario.OperatorNamespace, Name: "cnpg-scale-to-zero-plugin"}}
	s.must(kube.SubResource("token").Create(s.ctx, account, request))
	plugin, err := kube.As(request.Status.Token)
	s.must(err)
	return plugin
}

// cnpgGroup is the group of CloudNativePG's objects.
var cnpgGroup = cnpgv1.SchemeGroupVersion.Group

// limit is a request of an instance, and the message of its refusal.
type limit struct{ rule, pod, verb, path, body, says string }

// answer is what the API server answers to a request.
type answer struct {
	code int
	body []byte
}

// message returns the message of a Status; empty if the answer is an object.
func (a answer) message() string {
	var status struct{ Kind, Message string }
	if json.Unmarshal(a.body, &status) != nil || status.Kind != "Status" {
		return ""
	}
	return status.Message
}

// ask sends the requests, each with the token of its pod.
func (s *story) ask(rows []limit) []answer {
	s.Helper()
	instances, answers := map[string]*http.Client{}, make([]answer, len(rows))
	for i, row := range rows {
		if instances[row.pod] == nil {
			token, err := kube.Exec(s.ctx, s.namespace, row.pod, "postgres", "cat", tokens+"/token")
			s.must(err)
			config := rest.AnonymousClientConfig(kube.REST)
			config.BearerToken = token
			instances[row.pod], err = rest.HTTPClientFor(config)
			s.must(err)
		}
		request, err := http.NewRequestWithContext(s.ctx, row.verb, kube.REST.Host+row.path, strings.NewReader(row.body))
		s.must(err)
		request.Header.Set("Content-Type", "application/json")
		if row.verb == http.MethodPatch {
			request.Header.Set("Content-Type", string(types.MergePatchType))
		}
		response, err := instances[row.pod].Do(request)
		s.must(err)
		body, err := io.ReadAll(response.Body)
		s.must(errors.Join(err, response.Body.Close()))
		answers[i] = answer{response.StatusCode, body}
	}
	return answers
}

// has reports whether the object already contains the merge patch.
func (s *story) has(object []byte, patch string) bool {
	s.Helper()
	wanted, err := jsonpatch.MergePatch(object, []byte(patch))
	s.must(err)
	return jsonpatch.Equal(object, wanted)
}

// buildStatic builds a program of the module in a directory that runs on this machine and in any pod of the cluster. Its flags are those
// of the images, most of whose packages have been compiled then.
func buildStatic(t *testing.T, directory, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), filepath.Base(name))
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-trimpath", "-o", program, name)
	build.Dir, build.Env = directory, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+runtime.GOARCH)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %s", name, err, out)
	}
	return program
}
