package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// server is an API server with two clusters and a configurable pod proxy. It records its requests.
type server struct {
	mutex    sync.Mutex
	requests []string
	proxy    http.HandlerFunc
	// sleeps puts the cluster to sleep on request.
	sleeps    bool
	requested string
	asleep    bool
}

func (s *server) cluster() map[string]any {
	annotations := map[string]string{contract.AnnotationEnabled: "true"}
	metadata := map[string]any{"namespace": "shop", "name": "orders", "resourceVersion": "7", "uid": "u", "annotations": annotations}
	status := map[string]any{"currentPrimary": "orders-1", "instanceNames": []string{"orders-1"}}
	if s.requested != "" {
		annotations[contract.AnnotationSleepRequested] = s.requested
	}
	if s.asleep {
		annotations[contract.AnnotationHibernation] = "on"
		metadata["managedFields"] = []any{map[string]any{"manager": "cnpg-i-scale-to-zero", "fieldsType": "FieldsV1", "fieldsV1": map[string]any{
			"f:metadata": map[string]any{"f:annotations": map[string]any{"f:cnpg.io/hibernation": map[string]any{}}},
		}}}
		status["conditions"] = []any{map[string]any{"type": contract.AnnotationHibernation, "status": "True", "reason": "Hibernated", "lastTransitionTime": "2026-03-01T12:00:00Z"}}
	}
	return map[string]any{
		"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "metadata": metadata, "status": status,
		"spec": map[string]any{"instances": 1, "plugins": []any{map[string]any{"name": "cnpg-i-scale-to-zero.xata.io"}}},
	}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mutex.Lock()
	line := r.Method + " " + r.URL.RequestURI()
	if len(body) != 0 {
		line += " " + r.Header.Get("Content-Type") + " " + string(body)
	}
	s.requests = append(s.requests, line)
	s.mutex.Unlock()
	const clusters = "/apis/postgresql.cnpg.io/v1/namespaces/shop/clusters"
	switch {
	case strings.HasSuffix(r.URL.Path, "/proxy/activity"):
		s.proxy(w, r)
	case r.Method == http.MethodPatch && r.URL.Path == clusters+"/orders":
		s.patch(w, body)
	case r.Method == http.MethodGet && r.URL.Path == clusters+"/orders":
		s.mutex.Lock()
		defer s.mutex.Unlock()
		answerWith(w, http.StatusOK, s.cluster())
	case r.Method == http.MethodGet && r.URL.Path == clusters:
		answerWith(w, http.StatusOK, map[string]any{"apiVersion": "postgresql.cnpg.io/v1", "kind": "ClusterList", "items": []any{s.cluster()}})
	case r.Method == http.MethodGet && r.URL.Path == "/api/v1/namespaces/shop/pods":
		answerWith(w, http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "PodList", "items": []any{map[string]any{
			"metadata": map[string]any{"namespace": "shop", "name": "orders-1", "labels": map[string]string{"cnpg.io/cluster": "orders", "cnpg.io/podRole": "instance"}},
			"status":   map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
		}}})
	default:
		refuse(w, http.StatusNotFound, "NotFound", "the server could not find the requested resource")
	}
}

func (s *server) patch(w http.ResponseWriter, body []byte) {
	var sent struct {
		Metadata struct {
			Annotations map[string]*string `json:"annotations"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(body, &sent); err != nil {
		refuse(w, http.StatusBadRequest, "BadRequest", err.Error())
		return
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if value := sent.Metadata.Annotations[contract.AnnotationSleepRequested]; value != nil {
		s.requested, s.asleep = *value, s.sleeps
	} else {
		s.requested = ""
	}
	answerWith(w, http.StatusOK, s.cluster())
}

func answerWith(w http.ResponseWriter, status int, object map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(object)
}

// refuse answers like the API server when it refuses.
func refuse(w http.ResponseWriter, status int, reason, message string) {
	answerWith(w, status, map[string]any{
		"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": status,
	})
}

// reported answers like a sidecar.
func reported(t *testing.T, change func(*contract.Report)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		seconds := 60.0
		r := contract.Report{
			Version: contract.ReportVersion, Cluster: "orders", Pod: "orders-1", Known: true, IdleForSeconds: &seconds, AcceptsSleepRequests: true, Reason: "waiting",
			Blockers: []string{"waiting"}, Rules: contract.ReportedRules{Enabled: true},
		}
		change(&r)
		body, err := json.Marshal(r)
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(body)
	}
}

// serve starts the API server and returns a kubeconfig for it.
func serve(t *testing.T, s http.Handler) string {
	t.Helper()
	listening := httptest.NewServer(s)
	t.Cleanup(listening.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "here",
"clusters": [{"name": "here", "cluster": {"server": %q}}], "users": [{"name": "me", "user": {"token": "t"}}],
"contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "shop"}}, {"name": "elsewhere", "context": {"cluster": "here", "user": "me", "namespace": "team"}}]}`, listening.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// call runs the whole program.
func call(ctx context.Context, arguments ...string) (int, string) {
	var out strings.Builder
	code := Run(ctx, arguments, Streams{Out: &out, Err: &out, Getenv: func(string) string { return "" }}, "1.2.3")
	return code, out.String()
}

func TestTheProxy(t *testing.T) {
	t.Parallel()
	same := func(*contract.Report) {}
	for _, row := range []struct {
		rule  string
		proxy http.HandlerFunc
		says  string
	}{
		{"a sidecar that answers", reported(t, same), " waiting "},
		{"one of another cluster", reported(t, func(r *contract.Report) { r.Cluster = "other" }), "unusable answer"},
		{"one of another pod", reported(t, func(r *contract.Report) { r.Pod = "orders-2" }), "unusable answer"},
		{"one of another version", reported(t, func(r *contract.Report) { r.Version = 9 }), "version 9, want 1"},
		{"one that says too much", reported(t, func(r *contract.Report) { r.LastUnseenClient = strings.Repeat("x", 1<<20) }), "at most 65536 are allowed"},
		{"something else", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }, "unusable activity report"},
		{"who may not ask is told what he needs", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, http.StatusForbidden, "Forbidden", `pods "orders-1:9189" is forbidden: User "me" cannot get resource "pods/proxy"`)
		}, "you are not allowed to query it (get pods/proxy)"},
		{"a pod that has gone", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, http.StatusNotFound, "NotFound", "pods not found")
		}, "there is no such pod"},
		{"a port that nobody listens on", func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", "error trying to reach service: dial tcp 10.0.0.1:9189: connect: connection refused")
		}, "the API server cannot reach it"},
		{"a node that is away", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "bad gateway", http.StatusBadGateway) }, "the API server cannot reach it"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			code, text := call(t.Context(), "status", "--kubeconfig", serve(t, &server{proxy: row.proxy}))
			if code != exitDone || !strings.Contains(text, row.says) || !strings.Contains(text, "orders") {
				t.Errorf("code %d, it does not say %q:\n%s", code, row.says, text)
			}
		})
	}
	t.Run("a sidecar that is silent", func(t *testing.T) {
		t.Parallel()
		s := &server{proxy: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }}
		flags := kubeconfig(serve(t, s))
		a, err := connect(flags, func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if got := because(a.ask(ctx, instance{"shop", "orders", "orders-1"}).err); got != "it did not answer in time" {
			t.Errorf("because %s", got)
		}
	})
}

func TestOnTheWire(t *testing.T) {
	t.Parallel()
	s := &server{proxy: reported(t, func(*contract.Report) {}), sleeps: true}
	path := serve(t, s)
	for _, row := range []struct {
		arguments string
		code      int
		says      string
	}{
		{"explain orders", exitDone, "Awake, because it has not been idle for the threshold yet (waiting)."},
		{"keep-awake orders 1h", exitDone, "is kept awake until"},
		{"release orders", exitDone, "has no keep-awake time"},
		{"sleep orders", exitDone, "Cluster shop/orders is asleep."},
		{"status", exitDone, "asleep"},
		{"status --context elsewhere", exitFailed, "the API server knows no Clusters of postgresql.cnpg.io/v1"},
		{"wake -n team orders", exitFailed, "the API server knows no Clusters"},
		{"wake --context nowhere orders", exitFailed, "context was not found for specified context: nowhere"},
	} {
		code, text := call(t.Context(), append(strings.Fields(row.arguments), "--kubeconfig", path)...)
		if code != row.code || !strings.Contains(text, row.says) {
			t.Errorf("%s: code %d, it does not say %q:\n%s", row.arguments, code, row.says, text)
		}
	}
	var text strings.Builder
	for _, line := range s.requests {
		text.WriteString(timesOf.ReplaceAllString(line, "TIME") + "\n")
	}
	golden(t, "requests.txt", text.String())
}

// timesOf matches what changes from run to run.
var timesOf = regexp.MustCompile(`20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]+Z`)

func kubeconfig(path string) *genericclioptions.ConfigFlags {
	flags := genericclioptions.NewConfigFlags(true)
	flags.KubeConfig = &path
	return flags
}

func TestVersion_isThatOfTheProgram(t *testing.T) {
	t.Parallel()
	if code, text := call(t.Context(), "--version"); code != exitDone || text != "kubectl scale_to_zero version 1.2.3\n" {
		t.Errorf("code %d: %q", code, text)
	}
}
