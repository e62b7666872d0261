package audit

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The log is of a real API server with the policy of the harness. The sidecar's client wrote what a sidecar writes, with its
// Role and tokens of two pods; the plugin's, the operator's and a person's writes were made by hand. What a trace does not
// need was cut from it.
func TestTraces_ofARealLog(t *testing.T) {
	t.Parallel()
	log, err := os.Open("testdata/traces.log")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	traces, omitted, err := Traces(log)
	if err != nil || len(omitted) != 0 {
		t.Fatalf("omitted %q, error %v", omitted, err)
	}
	var got strings.Builder
	for _, trace := range traces {
		got.WriteString(trace.Text())
	}
	const golden = "testdata/traces.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("traces (-want +got), -update writes them:\n%s", diff)
	}
}

// Accounts of the requests in the tests' logs.
const (
	aSidecar   = `"userAgent": "cnpg-i-scale-to-zero", "user": {"username": "system:serviceaccount:ns:c", "extra": {"authentication.kubernetes.io/pod-name": ["c-1"]}}`
	aPlugin    = `"userAgent": "plugin", "user": {"username": "system:serviceaccount:cnpg-system:cnpg-scale-to-zero-plugin"}`
	inOperator = `"userAgent": "plugin/v0.0.0 (linux/amd64)", "user": {"username": "system:serviceaccount:cnpg-system:cnpg-manager"}`
	aPerson    = `"userAgent": "kubectl", "user": {"username": "kubernetes-admin"}`
)

// wrote is a line of the log: a request at a second, answered at another, that wrote a Cluster with annotations.
func wrote(verb, by string, from, to, version int, annotations string) string {
	return logged(verb, by, "clusters", from, to, 200, fmt.Sprintf(`{"metadata": {"annotations": {%s}}}`, annotations),
		fmt.Sprintf(`{"metadata": {"name": "c", "uid": "u", "resourceVersion": "%d", "annotations": {%s}}}`, version, annotations))
}

// fences is a patch of the sidecar at a second, of a Cluster whose fence is ours.
func fences(at int, annotations string) string {
	const ours = `"managedFields": [{"manager": "cnpg-i-scale-to-zero", "operation": "Update", "fieldsV1": {"f:metadata": {"f:annotations": {"f:cnpg.io/fencedInstances": {}}}}}], `
	return strings.Replace(wrote("patch", aSidecar, at, at, at+1, annotations), `"resourceVersion"`, ours+`"resourceVersion"`, 1)
}

// led is a write at a second that shows which instance is the primary.
func led(primary string, at int) string {
	return logged("patch", aPerson, "clusters", at, at, 200, "{}", fmt.Sprintf(`{"metadata": {"name": "c", "uid": "u", "resourceVersion": "%d"}, "status": {"currentPrimary": %q}}`, at, primary))
}

func logged(verb, by, resource string, from, to, code int, request, response string) string {
	return fmt.Sprintf(`{"verb": %q, "requestURI": "/apis", %s, "objectRef": {"apiGroup": "postgresql.cnpg.io", "resource": %q, "namespace": "ns", "name": "c"}, `+
		`"responseStatus": {"code": %d}, "requestReceivedTimestamp": "2026-01-01T00:00:%02dZ", "stageTimestamp": "2026-01-01T00:00:%02dZ", "requestObject": %s, "responseObject": %s}`,
		verb, by, resource, code, from, to, request, response) + "\n"
}

func TestTraces(t *testing.T) {
	t.Parallel()
	const on, announcement = `"cnpg.io/hibernation": "on"`, `"xata.io/scale-to-zero-announced": "a"`
	made := wrote("create", aPerson, 0, 0, 1, "")
	const (
		doze   = `"xata.io/scale-to-zero-announced": "a doze"`
		ready  = `"xata.io/scale-to-zero-gateway-ready": "a doze"`
		holds  = `"xata.io/scale-to-zero-gateway-holding": "a doze"`
		fenced = `"cnpg.io/fencedInstances": "[\"*\"]"`
		since  = `"xata.io/scale-to-zero-dozing-since": "s"`
		marks  = since + `, "xata.io/scale-to-zero-postgres-stopped": "u"`
		done   = `"status": {"conditions": [{"type": "cnpg.io/hibernation", "reason": "Hibernated", "status": "True"}]}`
	)
	held := made + wrote("patch", aSidecar, 1, 1, 2, doze) + wrote("patch", aPlugin, 2, 2, 3, doze+", "+ready) + wrote("patch", aPlugin, 3, 3, 4, doze+", "+ready+", "+holds)
	dozing := held + fences(4, fenced+", "+since) + fences(5, fenced+", "+marks)
	for _, row := range []struct {
		rule, log, want string
	}{
		{"writes are in the order of their versions, not of the log", made + wrote("patch", aPerson, 3, 4, 3, "") + wrote("patch", aPerson, 2, 5, 2, on), "person-hibernates person-wakes"},
		{"a list stands before what was asked for after it", made + wrote("patch", aSidecar, 3, 4, 3, announcement) + logged("list", aSidecar, "backups", 1, 2, 200, "null", "null"), "backups-listed announce"},
		{"and after what was asked for before it", made + logged("list", aSidecar, "backups", 2, 3, 200, "null", "null") + wrote("patch", aSidecar, 1, 4, 3, announcement), "announce backups-listed"},
		{"a write that changes nothing, with an old version, moves nothing forward", made + wrote("patch", aSidecar, 4, 4, 3, announcement) +
			logged("list", aSidecar, "backups", 5, 5, 200, "null", "null") + wrote("patch", aPerson, 8, 8, 1, ""), "announce backups-listed"},
		{"who shows a change is not who made it, if an answer was lost", made + logged("patch", aSidecar, "clusters", 1, 2, 504, `{"metadata": {"annotations": {`+on+`}}}`, "null") +
			logged("patch", aPerson, "clusters", 3, 3, 200, `{"metadata": {"labels": {}}}`, `{"metadata": {"name": "c", "uid": "u", "resourceVersion": "4", "annotations": {`+on+`}}}`), "hibernate"},
		{"what was refused has no word", made + logged("patch", aSidecar, "clusters", 1, 1, 409, `{}`, `{}`), ""},
		{"nor has a dry run", made + strings.Replace(wrote("patch", aPerson, 1, 1, 2, on), `"/apis"`, `"/apis?dryRun=All"`, 1), ""},
		{"what the operator did after a hibernation whose answer was lost comes after it", made + logged("patch", aSidecar, "clusters", 1, 2, 504, `{"metadata": {"annotations": {`+on+`}}}`, "null") +
			logged("patch", aPerson, "clusters", 3, 3, 200, `{"metadata": {"labels": {}}}`, `{"metadata": {"name": "c", "uid": "u", "resourceVersion": "4", "annotations": {`+on+`}}, `+done+`}`), "hibernate operator-begins pods-gone"},
		{"an acknowledgement whose answer was lost, and which the hibernation removed, comes after the announcement", made + wrote("patch", aSidecar, 1, 1, 2, announcement) +
			logged("patch", aPlugin, "clusters", 2, 3, 504, `{"metadata": {"annotations": {"xata.io/scale-to-zero-gateway-ready": "a"}}}`, "null") +
			logged("list", aSidecar, "backups", 3, 3, 200, "null", "null") + wrote("patch", aSidecar, 4, 4, 4, on), "announce acknowledge backups-listed hibernate"},
		{"an acknowledgement of something else is none", made + wrote("patch", aSidecar, 1, 1, 2, announcement) +
			logged("patch", aPlugin, "clusters", 2, 3, 504, `{"metadata": {"annotations": {"xata.io/scale-to-zero-gateway-ready": "b"}}}`, "null") +
			wrote("patch", aSidecar, 4, 4, 4, on), "announce hibernate"},
		{"a patch need not be an object", made + logged("patch", aPerson, "clusters", 1, 1, 200, `[{"op": "add", "path": "/metadata/annotations/a"}]`, `{"metadata": {"name": "c", "uid": "u", "resourceVersion": "2"}}`), ""},
		{"the write tells who turned hibernation off", made + wrote("patch", aSidecar, 1, 1, 2, on) + wrote("patch", aPlugin, 2, 2, 3, `"cnpg.io/hibernation": "off"`), "hibernate wake"},
		{"a new primary's list stands after the failover that its next write shows", made + led("c-2", 2) + logged("list", aSidecar, "backups", 3, 3, 200, "null", "null") + led("c-1", 4), "failover backups-listed"},
		{"the old one's stands before", made + led("c-1", 2) + logged("list", aSidecar, "backups", 3, 3, 200, "null", "null") + led("c-2", 4), "backups-listed failover"},
		{"a plugin in the operator's pod is the plugin", made + wrote("patch", aSidecar, 1, 1, 2, announcement) + wrote("patch", inOperator, 2, 2, 3, announcement+`, "xata.io/scale-to-zero-gateway-ready": "a"`), "announce acknowledge"},
		{"an apply that creates it begins a trace", strings.Replace(wrote("patch", aPerson, 0, 0, 1, ""), `"code": 200`, `"code": 201`, 1) + wrote("patch", aPerson, 1, 1, 2, on), "person-hibernates"},
		{"what was made before the log begins is left out", wrote("patch", aPerson, 1, 1, 2, on), "left out"},
		{"so is what somebody else fenced", made + wrote("patch", aPerson, 1, 1, 2, fenced), "left out"},
		{"what has dozed may hibernate without a doze later", held + wrote("patch", aSidecar, 4, 4, 5, announcement), "announce acknowledge hold announce"},
		{"a client ends a doze", dozing + wrote("patch", aPlugin, 6, 6, 7, ""), "announce acknowledge hold fence record-stop wake-dozing"},
		{"a person replaces the Cluster before PostgreSQL has stopped", held + fences(4, fenced+", "+since) + wrote("patch", aPerson, 5, 5, 6, ""),
			"announce acknowledge hold fence person-replaces"},
		{"one may come before the fence", held + wrote("patch", aPlugin, 4, 4, 5, ""), "announce acknowledge hold interrupt"},
		{"the sidecar ends a doze", dozing + wrote("patch", aSidecar, 6, 6, 7, marks) + wrote("patch", aSidecar, 7, 7, 8, ""),
			"announce acknowledge hold fence record-stop lift-fence remove-announcement"},
		{"a person lifts the fence, and the sidecar removes the rest", dozing + wrote("patch", aPerson, 6, 6, 7, marks) + wrote("patch", aSidecar, 7, 7, 8, ""),
			"announce acknowledge hold fence record-stop person-lifts-fence remove-announcement"},
		{"a doze becomes hibernation, for which the plugin removes the fence", dozing + fences(6, fenced+", "+marks+", "+on) + wrote("patch", aPlugin, 7, 7, 8, on) + wrote("patch", aPlugin, 8, 8, 9, ""),
			"announce acknowledge hold fence record-stop hibernate remove-fence wake"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			traces, omitted, err := Traces(strings.NewReader(row.log))
			if err != nil {
				t.Fatal(err)
			}
			var words []string
			for _, trace := range traces {
				for _, step := range trace.Steps {
					words = append(words, string(step.Word))
				}
			}
			if len(omitted) != 0 {
				words = []string{"left out"}
			}
			if got := strings.Join(words, " "); got != row.want {
				t.Errorf("%q, want %q", got, row.want)
			}
			if _, err := Read(strings.NewReader(row.log)); err != nil {
				t.Errorf("the comparison of rights does not read it: %v", err)
			}
		})
	}
}

// A log that is damaged is an error, or has fewer traces, whose steps all have words.
func FuzzTraces(f *testing.F) {
	f.Add(wrote("create", aPerson, 0, 0, 1, "") + wrote("patch", aSidecar, 1, 1, 2, `"cnpg.io/hibernation": "on"`))
	f.Add(logged("list", aSidecar, "backups", 1, 2, 200, "null", "null"))
	f.Fuzz(func(t *testing.T, log string) {
		traces, _, err := Traces(strings.NewReader(log))
		_, wrong := Read(strings.NewReader(log))
		if err != nil && wrong == nil && len(traces) != 0 {
			t.Errorf("%d traces, and the error %v", len(traces), err)
		}
		for _, trace := range traces {
			for _, step := range trace.Steps {
				if step.Word == "" {
					t.Errorf("a step without a word: %+v", trace)
				}
			}
		}
	})
}
