package chart

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/action"
	"sigs.k8s.io/yaml"
)

// Helm's own check of charts finds nothing, warnings included.
func TestChart_isLinted(t *testing.T) {
	t.Parallel()
	lint := action.NewLint()
	lint.Strict, lint.Namespace = true, "cnpg-system"
	absolute, err := filepath.Abs(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, values := range []map[string]any{
		set(t), set(t, "certificate.provider=cert-manager", "monitoring.monitorsEnabled=true", "monitoring.rulesEnabled=true",
			"monitoring.grafanaDashboard.create=true", "policies.annotations=true", "networkPolicy.enabled=true"),
		set(t, "operatorSocket.enabled=true"),
	} {
		result := lint.Run([]string{absolute}, values)
		for _, message := range result.Messages {
			if !strings.Contains(message.Error(), "icon is recommended") {
				t.Error(message)
			}
		}
		if len(result.Errors) != 0 || result.TotalChartsLinted != 1 {
			t.Errorf("%d charts linted: %v", result.TotalChartsLinted, result.Errors)
		}
	}
}

// A value that is unknown or wrong is refused by its name.
func TestValues_refused(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ rule, value, want string }{
		{"an unknown value", `replicas=3`, `'replicas' not allowed`},
		{"an unknown value inside", `image.version="v2"`, `at '/image': additional properties 'version' not allowed`},
		{"a number as text", `replicaCount="two"`, `at '/replicaCount': got string, want integer`},
		{"a negative number", `replicaCount=-1`, `at '/replicaCount'`},
		{"text for true", `policies.instances="yes"`, `at '/policies/instances': got string, want boolean`},
		{"one of several", `certificate.provider="vault"`, `at '/certificate/provider': value must be one of 'self-provisioned', 'cert-manager', 'none'`},
		{"true as text", `shortenStartupProbes="true"`, `at '/shortenStartupProbes': got string, want boolean`},
		{"a level", `logLevel="verbose"`, `at '/logLevel'`},
		{"a digest without its algorithm", `image.digest="abc"`, `at '/image/digest'`},
		{"an image with its tag", `sidecarImage.repository="sidecar:v1"`, `at '/sidecarImage/repository'`},
		{"a range of ports", `gateway.ports="10000"`, `at '/gateway/ports'`},
		{"an address", `gateway.allow=["10.0.0.1"]`, `at '/gateway/allow/0'`},
		{"a duration", `gateway.wakeTimeout="5 minutes"`, `at '/gateway/wakeTimeout'`},
		{"a wake of more than an hour", `gateway.wakeTimeout="2h"`, `at '/gateway/wakeTimeout'`},
		{"more time for the other nodes than the plugin takes", `gateway.handoverWait="11s"`, `at '/gateway/handoverWait'`},
		{"ports below those of everybody", `gateway.ports="100-200"`, `at '/gateway/ports'`},
		{"a limit of megabytes with which no sidecar starts", `sidecar.resources.limits.memory="33M"`, `at '/sidecar/resources/limits/memory'`},
		{"no CPU", `sidecar.resources.limits.cpu="0.0"`, `at '/sidecar/resources/limits/cpu'`},
		{"less memory in a doze than the plugin takes", `doze.memoryRequest="1M"`, `at '/doze/memoryRequest'`},
		{"policies for pods that there are not", "networkPolicy.enabled=true\noperatorSocket.enabled=true\noperatorSocket.serviceAccountName=cnpg-manager", `networkPolicy.enabled is true, but the plugin runs in the operator's pod`},
		{"a ClusterIssuer without its name", `certificate={"provider":"cert-manager","issuerKind":"ClusterIssuer"}`, `certificate.issuerName is empty: name the ClusterIssuer`},
		{"a rate", `gateway.wakeRate=1001`, `at '/gateway/wakeRate'`},
		{"a quantity", `sidecar.resources.limits.memory="64MB"`, `at '/sidecar/resources/limits/memory'`},
		{"thousandths of a byte", `sidecar.resources.limits.memory="64m"`, `at '/sidecar/resources/limits/memory'`},
		{"bytes for MiB", `sidecar.resources.requests.memory="32"`, `at '/sidecar/resources/requests/memory'`},
		{"a limit with which no sidecar starts", `sidecar.resources.limits.memory="31Mi"`, `at '/sidecar/resources/limits/memory'`},
		{"CPU in bytes", `sidecar.resources.limits.cpu="1Mi"`, `at '/sidecar/resources/limits/cpu'`},
		{"a registry with a slash at its end", `image.registry="reg/team/"`, `at '/image/registry'`},
		{"a wake of a second", `gateway.wakeTimeout="1s"`, `at '/gateway/wakeTimeout'`},
		{"a Secret by its name alone", `imagePullSecrets=["login"]`, `at '/imagePullSecrets/0': got string, want object`},
		{"no registry", `image.registry=""`, `image.registry is empty: name the registry that has the images`},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			loaded, err := Load(directory)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Render(t.Context(), loaded, "cnpg-system", set(t, strings.Split(row.value, "\n")...))
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("%s gives %v, want %q", row.value, err, row.want)
			}
		})
	}
}

// The schema knows the values that there are, and no others.
func TestValues_areThoseOfTheSchema(t *testing.T) {
	t.Parallel()
	var values map[string]any
	var schema object
	for name, into := range map[string]any{valuesFile: &values, "values.schema.json": &schema} {
		body, err := os.ReadFile(filepath.Join(directory, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(body, into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	delete(schema.Properties, "global") // what Helm gives every chart that is part of another
	agree(t, "", values, schema)
}

// In the operator's pod there is no certificate to serve the endpoint with.
func TestValues_theEndpointNeedsACertificate(t *testing.T) {
	t.Parallel()
	loaded, err := Load(directory)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Render(t.Context(), loaded, "cnpg-system", set(t, "wakeEndpoint.enabled=true", "operatorSocket.enabled=true"))
	if err == nil || !strings.Contains(err.Error(), "in the operator's pod the plugin has no certificate") {
		t.Errorf("it gives %v", err)
	}
}

// object is what a schema says of an object.
type object struct {
	Properties           map[string]object `json:"properties"`
	AdditionalProperties json.RawMessage   `json:"additionalProperties"`
}

// agree demands of every object with known properties that values and schema have the same.
func agree(t *testing.T, path string, values map[string]any, schema object) {
	t.Helper()
	if string(schema.AdditionalProperties) != "false" {
		t.Errorf("the schema takes anything at %s/", path)
	}
	known := maps.Clone(schema.Properties)
	if path == "/resources" || path == "/updateStrategy" {
		maps.DeleteFunc(known, func(name string, _ object) bool { _, ok := values[name]; return !ok }) // Kubernetes knows more of them
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(known)), slices.Sorted(maps.Keys(values))); diff != "" {
		t.Errorf("the values at %s/ differ (- schema, + values):\n%s", path, diff)
	}
	for name, value := range values {
		if inner, ok := value.(map[string]any); ok && len(schema.Properties[name].Properties) != 0 {
			agree(t, path+"/"+name, inner, schema.Properties[name])
		}
	}
}

// In the operator's pod the patch gives the plugin what otherwise the chart's Deployment gives it.
func TestValues_reachThePluginInTheOperatorsPod(t *testing.T) {
	t.Parallel()
	patch := notes(t, set(t, `operatorSocket.enabled=true`, `operatorSocket.serviceAccountName="cnpg-manager"`, `goMemoryLimit="150MiB"`,
		`additionalArgs=["--log-level=debug"]`, `additionalEnv=[{"name":"RELEASE","value":"{{ .Release.Name }}"}]`))
	for _, want := range []string{
		"- name: GOMEMLIMIT\n          value: 150MiB\n", "- name: RELEASE\n          value: scale-to-zero\n", "- plugin\n        - --log-level=debug\n",
	} {
		if !strings.Contains(patch, want) {
			t.Errorf("the patch has no %q:\n%s", want, patch)
		}
	}
	if strings.Contains(patch, "400MiB") {
		t.Errorf("the patch has two limits of Go's memory:\n%s", patch)
	}
}

func TestValues_reachThePlugin(t *testing.T) {
	t.Parallel()
	got := rendered(t, "cnpg-system", set(t,
		`gateway.ports="20000-20999"`, `gateway.allow=["10.0.0.0/8","fd00::/8"]`, `gateway.wakeTimeout="3m"`, `gateway.wakeSourceBurst=50`, `gateway.wakeHibernatedBy=["sablier","other"]`, `gateway.wakeBurst=1000000`, `gateway.wakeRate=20`, `gateway.held=9000`, `gateway.drainSeconds=60`,
		`sidecar.update="immediate"`, `shortenStartupProbes=false`, `sidecar.resources.requests.cpu="10m"`, `rbac.cnpgGroup="postgresql.example.org"`, `policies.annotations=true`, `replicaCount=1`,
		`additionalArgs=["--log-level=debug"]`, `additionalEnv=[{"name":"RELEASE","value":"{{ .Release.Name }}"}]`,
		`networkPolicy.enabled=true`, `podLabels={"team":"databases"}`, `commonAnnotations={"example.org/owner":"databases"}`))
	body, err := yaml.Marshal(got["Deployment scale-to-zero"].Object)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"- name: GATEWAY_PORTS\n          value: 20000-20999\n", "value: 10.0.0.0/8,fd00::/8\n", "value: 3m\n", "value: sablier,other\n", "value: \"1000000\"\n", "value: \"20\"\n", "value: \"9000\"\n", "value: 60s\n",
		"terminationGracePeriodSeconds: 115\n", "value: immediate\n", "- name: SHORTEN_STARTUP_PROBES\n          value: \"false\"\n", "value: 10m\n", "value: postgresql.example.org\n", "- --log-level=debug\n",
		"- name: RELEASE\n          value: scale-to-zero\n", "team: databases\n", "example.org/owner: databases\n", "replicas: 1\n",
	} {
		if !strings.Contains(string(body), want) {
			t.Errorf("the Deployment has no %q:\n%s", want, body)
		}
	}
	for name, object := range got {
		body, err := yaml.Marshal(object.Object)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(body), "postgresql.cnpg.io") {
			t.Errorf("%s names the API group that the operator does not have:\n%s", name, body)
		}
	}
	if _, ok := got["PodDisruptionBudget scale-to-zero"]; ok {
		t.Error("a budget of one replica keeps its node from being drained")
	}
	for name, want := range map[string]string{
		"NetworkPolicy scale-to-zero": "endPort: 20999\n    port: 20000\n", "ClusterRole cnpg-scale-to-zero-plugin": "- postgresql.example.org\n",
	} {
		body, err := yaml.Marshal(got[name].Object)
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.ReplaceAll(string(body), "      ", "    "); !strings.Contains(text, want) {
			t.Errorf("%s has no %q:\n%s", name, want, body)
		}
	}
}
