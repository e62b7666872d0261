package kubernetes

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds every wait; a passing test never reaches it.
const patience = time.Minute

// object is a Kubernetes object.
type object = map[string]any

// apiServer answers the sidecar's requests like the real API server: lists and watches of one object under a Role with
// resourceNames, pages, merge patches with a resourceVersion precondition, and a Status for every refusal.
type apiServer struct {
	mutex    sync.Mutex
	version  int
	objects  map[string]object // by path
	changed  chan struct{}     // closed and replaced at every change
	history  []object          // watch events, by version
	requests []string
	// compacted is the version up to which the history has been discarded.
	compacted int
	// Closing cut ends every open watch; down makes every request fail like a proxy without a backend; silent carries out every
	// patch but cuts off its answer.
	cut          chan struct{}
	down, silent bool
}

func newAPI() *apiServer {
	return &apiServer{objects: map[string]object{}, changed: make(chan struct{}), cut: make(chan struct{})}
}

const (
	clusters  = "/apis/postgresql.cnpg.io/v1/namespaces/team/clusters"
	backups   = "/apis/postgresql.cnpg.io/v1/namespaces/team/backups"
	schedules = "/apis/postgresql.cnpg.io/v1/namespaces/team/scheduledbackups"
	events    = "/api/v1/namespaces/team/events"
)

// put stores an object given as JSON, on behalf of another client.
func (a *apiServer) put(t *testing.T, collection, text string) {
	t.Helper()
	var o object
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.store(collection, o)
}

// kinds maps the collections to their kinds.
var kinds = map[string]string{clusters: "Cluster", backups: "Backup", schedules: "ScheduledBackup"}

func (a *apiServer) store(collection string, o object) {
	a.version++
	o["apiVersion"], o["kind"] = "postgresql.cnpg.io/v1", kinds[collection]
	metadata, _ := o["metadata"].(object)
	metadata["resourceVersion"] = strconv.Itoa(a.version)
	path := collection + "/" + metadata["name"].(string)
	kind := "MODIFIED"
	if a.objects[path] == nil {
		kind = "ADDED"
	}
	a.objects[path] = o
	a.history = append(a.history, object{"type": kind, "path": path, "version": a.version, "object": clone(o)})
	close(a.changed)
	a.changed = make(chan struct{})
}

// with runs a function while no request is served.
func (a *apiServer) with(f func()) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	f()
}

func clone(o object) object {
	text, _ := json.Marshal(o) // it was made from JSON
	var copied object
	_ = json.Unmarshal(text, &copied)
	return copied
}

// status answers with a Status, like every refusal of the API server.
func status(w http.ResponseWriter, code int, reason, message string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code})
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	query, _ := url.QueryUnescape(r.URL.RawQuery)
	request := r.Method + " " + r.URL.Path + "\n"
	if query != "" {
		request = r.Method + " " + r.URL.Path + "?" + query + "\n"
	}
	for _, name := range []string{"Accept", "Content-Type", "User-Agent"} {
		if value := r.Header.Get(name); value != "" && !strings.HasPrefix(value, "Go-http-client") {
			request += name + ": " + value + "\n"
		}
	}
	a.mutex.Lock()
	a.requests = append(a.requests, strings.TrimSpace(request+string(body)))
	down := a.down
	a.mutex.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case down:
		http.Error(w, "<html>no server</html>", http.StatusBadGateway)
	case r.URL.Query().Get("watch") == "true":
		a.watch(w, r)
	default:
		a.mutex.Lock()
		defer a.mutex.Unlock()
		a.answer(w, r, body)
	}
}

func (a *apiServer) answer(w http.ResponseWriter, r *http.Request, body []byte) {
	path := r.URL.Path
	found := a.objects[path]
	switch {
	case r.Method == http.MethodGet && slices.Contains([]string{clusters, backups, schedules}, path):
		a.list(w, r)
	case r.Method == http.MethodPost && path == events:
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	case found == nil:
		status(w, http.StatusNotFound, "NotFound", "not found")
	case r.Method == http.MethodGet:
		_ = json.NewEncoder(w).Encode(found)
	case r.Method == http.MethodPatch && r.Header.Get("Content-Type") == "application/merge-patch+json":
		var p object
		if json.Unmarshal(body, &p) != nil {
			status(w, http.StatusBadRequest, "BadRequest", "not JSON")
			return
		}
		want, _ := p["metadata"].(object)["resourceVersion"].(string)
		if want != found["metadata"].(object)["resourceVersion"] {
			status(w, http.StatusConflict, "Conflict", "the object has been modified; please apply your changes to the latest version and try again")
			return
		}
		merged := merge(clone(found), p)
		own(merged, p, r.URL.Query().Get("fieldManager"))
		a.store(path[:strings.LastIndex(path, "/")], merged)
		if a.silent {
			panic(http.ErrAbortHandler)
		}
		_ = json.NewEncoder(w).Encode(merged)
	default:
		status(w, http.StatusMethodNotAllowed, "MethodNotAllowed", r.Method)
	}
}

// own records in managedFields that a manager set spec.suspend.
func own(o, p object, manager string) {
	spec, _ := p["spec"].(object)
	if _, ok := spec["suspend"]; !ok {
		return
	}
	o["metadata"].(object)["managedFields"] = []any{object{
		"manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": object{"f:spec": object{"f:suspend": object{}}},
	}}
}

// merge applies a merge patch (RFC 7386).
func merge(target, p object) object {
	if target == nil {
		target = object{}
	}
	for key, value := range p {
		switch value := value.(type) {
		case nil:
			delete(target, key)
		case object:
			into, _ := target[key].(object)
			target[key] = merge(into, value)
		default:
			target[key] = value
		}
	}
	return target
}

// named returns the name in the field selector; without one, a Role with resourceNames forbids list and watch.
func named(w http.ResponseWriter, r *http.Request) (string, bool) {
	name, ok := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	if r.URL.Path == clusters && !ok {
		status(w, http.StatusForbidden, "Forbidden", "clusters is forbidden")
		return "", false
	}
	return name, true
}

func (a *apiServer) list(w http.ResponseWriter, r *http.Request) {
	name, ok := named(w, r)
	if !ok {
		return
	}
	items := []object{}
	for _, path := range slices.Sorted(maps.Keys(a.objects)) {
		if strings.HasPrefix(path, r.URL.Path+"/"+name) {
			items = append(items, a.objects[path])
		}
	}
	metadata := object{"resourceVersion": strconv.Itoa(a.version)}
	start, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	items = items[start:]
	if limit, err := strconv.Atoi(r.URL.Query().Get("limit")); err == nil && len(items) > limit {
		items = items[:limit]
		metadata["continue"] = strconv.Itoa(start + limit)
	}
	_ = json.NewEncoder(w).Encode(object{"apiVersion": "postgresql.cnpg.io/v1", "kind": kinds[r.URL.Path] + "List", "metadata": metadata, "items": items})
}

func (a *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	name, ok := named(w, r)
	if !ok {
		return
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	a.mutex.Lock()
	cut := a.cut
	a.mutex.Unlock()
	_ = http.NewResponseController(w).Flush() // the real API server sends its header at once, too
	for {
		a.mutex.Lock()
		changed := a.changed
		var pending []object
		for _, event := range a.history {
			if event["version"].(int) > from && event["path"] == r.URL.Path+"/"+name {
				pending = append(pending, object{"type": event["type"], "object": event["object"]})
			}
		}
		if from < a.compacted {
			pending = []object{{"type": "ERROR", "object": object{
				"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": fmt.Sprintf("too old resource version: %d (%d)", from, a.compacted),
			}}}
		}
		from = a.version
		a.mutex.Unlock()
		for _, event := range pending {
			_ = json.NewEncoder(w).Encode(event)
		}
		_ = http.NewResponseController(w).Flush()
		if len(pending) != 0 && pending[0]["type"] == "ERROR" {
			return
		}
		select {
		case <-changed:
		case <-cut:
			panic(http.ErrAbortHandler) // like a server that dies
		case <-r.Context().Done():
			return
		}
	}
}

// blue identifies the sidecar of the tests.
var blue = Identity{
	Namespace: "team", Cluster: "blue", Pod: "blue-1", PodUID: "11111111-2222-3333-4444-555555555555",
	Group: "postgresql.cnpg.io", Version: "v1",
}

// connect serves an API server and returns a client of it that retries quickly.
func connect(t *testing.T, a http.Handler) *Client {
	t.Helper()
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	client, err := Connect(Endpoint{URL: server.URL}, blue, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	client.backoff.Duration, client.backoff.Cap = time.Millisecond, 5*time.Millisecond
	return client
}
