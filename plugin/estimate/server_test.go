package estimate

import (
	"bufio"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// begin is when the made data begin.
var begin = time.Date(2026, time.March, 1, 0, 0, 0, 0, time.UTC)

// fake answers the queries of this package as Prometheus does, out of made data.
type fake struct {
	// clusters are by namespace/name; instances says how many are scraped at a minute, and used whether one is used.
	clusters        []string
	instances       func(cluster string, minute int) int
	used            func(cluster string, minute int) bool
	users           map[string][]User
	points, batches int // what the server allows a query
	status          int
	warning         string

	mutex    sync.Mutex
	requests []*http.Request
	asked    []string
}

// seen returns the requests so far, and what they asked.
func (f *fake) seen() (requests []*http.Request, asked []string) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return slices.Clone(f.requests), slices.Clone(f.asked)
}

// resolution is how many points of a series Prometheus returns at most.
const resolution = 11000

var selected = regexp.MustCompile(`namespace=~"([^"]*)",pod=~"\(([^)]*)\)`)

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.FormValue("query")
	f.mutex.Lock()
	f.requests, f.asked = append(f.requests, r), append(f.asked, query)
	f.mutex.Unlock()
	found := selected.FindStringSubmatch(query)
	if found == nil || f.status != 0 {
		w.WriteHeader(max(f.status, http.StatusBadRequest))
		return
	}
	namespaces, names := strings.Split(found[1], "|"), strings.Split(found[2], "|")
	from, to := minute(r.FormValue("start")), minute(r.FormValue("end"))
	switch {
	case to-from >= resolution:
		refuse(w, http.StatusBadRequest, "bad_data", "exceeded maximum resolution of 11,000 points per timeseries")
		return
	case f.points != 0 && to-from >= f.points, f.batches != 0 && len(names) > f.batches:
		refuse(w, http.StatusUnprocessableEntity, "execution", "query processing would load too many samples into memory")
		return
	}
	out := bufio.NewWriter(w)
	defer func() { _ = out.Flush() }()
	instant := strings.HasSuffix(r.URL.Path, "/query")
	_, _ = fmt.Fprintf(out, `{"status":"success","warnings":%s,"data":{"resultType":%q,"result":[`,
		map[bool]string{true: "[]", false: fmt.Sprintf("[%q]", f.warning)}[f.warning == ""], map[bool]string{true: "vector", false: "matrix"}[instant])
	comma := ""
	for _, cluster := range f.clusters {
		namespace, name, _ := strings.Cut(cluster, "/")
		if !slices.Contains(namespaces, namespace) || !slices.Contains(names, name) {
			continue
		}
		if instant {
			for i, user := range f.users[cluster] {
				_, _ = fmt.Fprintf(out, `%s{"metric":{"namespace":%q,"cluster":%q,"usename":%q,"application_name":%q},"value":[%s,"%d"]}`,
					comma, namespace, name, user.Name, user.Application, r.FormValue("time"), 10-i)
				comma = ","
			}
			continue
		}
		_, _ = fmt.Fprintf(out, `%s{"metric":{"namespace":%q,"cluster":%q},"values":[`, comma, namespace, name)
		f.values(out, cluster, strings.Contains(query, "unless"), from, to)
		_, _ = out.WriteString("]}")
		comma = ","
	}
	_, _ = out.WriteString("]}}")
}

// values writes the samples; an answer has none for a time without a value.
func (f *fake) values(out *bufio.Writer, cluster string, used bool, from, to int) {
	comma, number := "[", []byte(nil)
	for m := from; m <= to; m++ {
		value := 0
		if !used {
			value = f.instances(cluster, m)
		} else if f.used(cluster, m) {
			value = 1
		}
		if value == 0 {
			continue
		}
		_, _ = out.WriteString(comma)
		number = strconv.AppendInt(number[:0], begin.Unix()+int64(m)*60, 10)
		number = append(strconv.AppendInt(append(number, ',', '"'), int64(value), 10), '"', ']')
		_, _ = out.Write(number)
		comma = ",["
	}
}

func minute(at string) int {
	seconds, _ := strconv.ParseFloat(at, 64)
	return int(seconds-float64(begin.Unix())) / 60
}

func refuse(w http.ResponseWriter, status int, kind, text string) {
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"status":"error","errorType":%q,"error":%q}`, kind, text)
}

// serve opens the server.
func (f *fake) serve(t testing.TB, options Options) *Server {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	options.URL = server.URL + "/prefix/"
	s, err := Open(options)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func always(string, int) int { return 1 }

// officeHours is used from 8 to 18 o'clock.
func officeHours(_ string, minute int) bool { hour := minute / 60 % 24; return hour >= 8 && hour < 18 }

func TestHistories(t *testing.T) {
	t.Parallel()
	const days = 8 // which is more than one query may be about
	for _, row := range []struct {
		rule    string
		f       *fake
		queries int
	}{
		{"a long time is asked for in parts", &fake{}, 2 * 2},
		{"what is beyond the server's limit of points, in smaller ones", &fake{points: 3000}, 0},
		{"and so are too many clusters at once", &fake{batches: 1}, 0},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			f := row.f
			f.clusters = []string{"a/one", "a/three", "a/pg", "b/pg", "b/one", "c/unasked"}
			f.used = func(cluster string, minute int) bool {
				return cluster == "b/pg" || cluster == "b/one" || cluster == "a/three" && minute == 5 ||
					cluster == "a/one" && officeHours("", minute)
			}
			f.instances = func(cluster string, minute int) int {
				if cluster == "a/three" && minute < 10 {
					return 2
				}
				return map[string]int{"a/one": 1, "a/three": 3, "b/pg": 1, "b/one": 1}[cluster]
			}
			asked := []Cluster{{"a", "one", 1}, {"a", "three", 3}, {"a", "pg", 1}, {"b", "pg", 1}}
			got, err := f.serve(t, Options{}).Histories(t.Context(), asked, begin, begin.Add(days*24*time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			for i, c := range asked {
				for m, state := range got[i].states {
					want := idle
					switch key := c.Namespace + "/" + c.Name; {
					case f.used(key, m):
						want = inUse
					case f.instances(key, m) < c.Instances:
						want = unknown
					}
					if state != want {
						t.Fatalf("%v is %d after %d minutes, want %d", c, state, m, want)
					}
				}
				if length := len(got[i].states); length != days*24*60+1 {
					t.Errorf("%v has %d samples", c, length)
				}
			}
			if requests, _ := f.seen(); row.queries != 0 && len(requests) != row.queries {
				t.Errorf("%d queries, want %d", len(requests), row.queries)
			}
		})
	}
}

func TestUsers(t *testing.T) {
	t.Parallel()
	f := &fake{clusters: []string{"a/one", "b/one"}, users: map[string][]User{
		"a/one": {{"app", "web"}, {"app", ""}, {"bi", "metabase"}, {"x", "y"}},
	}}
	got, err := f.serve(t, Options{}).Users(t.Context(), []Cluster{{"b", "one", 1}, {"a", "one", 1}}, begin,
		begin.AddDate(0, 0, 14))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]User{nil, {{"app", "web"}, {"app", ""}, {"bi", "metabase"}}}, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, says string
		f          *fake
		atMost     int
	}{
		{"a server that never answers is not asked for ever", "too many samples", &fake{points: 1}, 40},
		{"one that refuses is asked no more", "client error: 403", &fake{status: http.StatusForbidden}, 6},
		{"an incomplete answer is none", "may be incomplete: a store is away", &fake{warning: "a store is away"}, 4},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			f := row.f
			f.clusters, f.instances, f.used = []string{"a/one"}, always, officeHours
			_, err := f.serve(t, Options{}).Histories(t.Context(), []Cluster{{"a", "one", 1}, {"a", "two", 1}}, begin,
				begin.AddDate(0, 0, 14))
			if _, asked := f.seen(); err == nil || !strings.Contains(err.Error(), row.says) || len(asked) > row.atMost {
				t.Errorf("after %d queries: %v", len(asked), err)
			}
		})
	}
}

// What is sent to the server, and to nobody else.
func TestOpen(t *testing.T) {
	t.Parallel()
	f := &fake{}
	directory := t.TempDir()
	token, authority := filepath.Join(directory, "token"), filepath.Join(directory, "ca.crt")
	for path, text := range map[string]string{token: "secret\n", authority: "none"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := f.serve(t, Options{TokenFile: token, Headers: map[string]string{"x-scope-orgid": "team"}, Match: `k8s_cluster="eu"`})
	if _, err := s.Histories(t.Context(), []Cluster{{"a", "one", 1}}, begin, begin.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	requests, asked := f.seen()
	for i, r := range requests {
		if r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("X-Scope-OrgID") != "team" ||
			r.URL.Path != "/prefix/api/v1/query_range" {
			t.Errorf("asked %s with %v", r.URL, r.Header)
		}
		if strings.Count(asked[i], "{") != strings.Count(asked[i], `k8s_cluster="eu"`) {
			t.Errorf("a selector does not match the Kubernetes cluster: %s", asked[i])
		}
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("another host was sent the token")
		}
	}))
	defer elsewhere.Close()
	away := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer away.Close()
	redirected, err := Open(Options{URL: away.URL, TokenFile: token})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := redirected.Users(t.Context(), []Cluster{{"a", "one", 1}}, begin, begin.Add(time.Hour)); err == nil {
		t.Error("nonsense is an answer")
	}
	for _, bad := range []Options{
		{}, {URL: "prometheus:9090"}, {URL: "https://"}, {URL: "http://p", TokenFile: directory}, {URL: "http://p", CAFile: directory}, {URL: "http://p", CAFile: authority},
	} {
		if _, err := Open(bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

func TestOpen_trustsTheGivenAuthority(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(&fake{})
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of the client that does not trust it
	server.StartTLS()
	defer server.Close()
	authority := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, trusted := range map[string]bool{authority: true, "": false} {
		s, err := Open(Options{URL: server.URL, CAFile: file})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Histories(t.Context(), []Cluster{{"a", "one", 1}}, begin, begin); (err == nil) != trusted {
			t.Errorf("with the authority %q: %v", file, err)
		}
	}
}

// Whom the sidecar takes for infrastructure, the expression leaves out, and nobody else.
func TestClients_areThoseOfTheSidecar(t *testing.T) {
	t.Parallel()
	s := &Server{}
	clusters := []Cluster{{"shop", "orders", 2}, {"shop", "carts", 1}}
	expression := s.clients(s.selector(clusters), clusters, "%s")
	_, own, _ := strings.Cut(expression, " unless ")
	matchers := regexp.MustCompile(`(\w+)(=~?)"((?:[^"\\]|\\.)*)"`)
	left := func(labels map[string]string) bool {
		return slices.ContainsFunc(strings.Split(own, " or "), func(selector string) bool {
			for _, m := range matchers.FindAllStringSubmatch(selector, -1) {
				value, err := strconv.Unquote(`"` + m[3] + `"`)
				if err != nil {
					t.Fatal(err)
				}
				if m[2] == "=" {
					value = regexp.QuoteMeta(value)
				}
				if !regexp.MustCompile("^(?:" + value + ")$").MatchString(labels[m[1]]) {
					return false
				}
			}
			return true
		})
	}
	rules := activity.Rules{Instances: []string{"orders-1", "orders-2"}}
	for _, user := range []string{"postgres", "cnpg_metrics_exporter", "app", activity.PoolerUser, activity.StandbyUser} {
		for _, application := range []string{
			"", "psql", "cnpg-instance-manager", "cnpg_metrics_exporter", "pg_isready", "cnpg-i-scale-to-zero", contract.ListeningApplicationName,
			"orders-1", "orders-2", "orders-2-join", "orders-2-joined", "orders", "carts-1", "orders-dr-1",
		} {
			for _, database := range []string{"postgres", "app"} {
				want := activity.Classify(activity.Session{BackendType: "client backend", User: user, Application: application, Database: database, Local: true}, rules)
				got := left(map[string]string{"namespace": "shop", "pod": "orders-1", "usename": user, "application_name": application, "datname": database})
				if got != (want == activity.ClassInfrastructure) {
					t.Errorf("%s by %q in %s is %s, and left out: %t", user, application, database, want, got)
				}
			}
		}
	}
}

var update = flag.Bool("update", false, "rewrite testdata/queries.txt")

// The tests of e2e/monitoring have promtool evaluate what is recorded.
func TestServer_asksTheRecordedQueries(t *testing.T) {
	t.Parallel()
	f := &fake{instances: always, used: officeHours}
	s := f.serve(t, Options{Match: `k8s_cluster="eu"`})
	clusters := []Cluster{{"shop", "orders", 2}, {"shop", "orders-dr", 1}}
	if _, err := s.Histories(t.Context(), clusters, begin, begin); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Users(t.Context(), clusters, begin, begin.Add(7*time.Minute)); err != nil {
		t.Fatal(err)
	}
	_, asked := f.seen()
	got, path := strings.Join(asked, "\n")+"\n", filepath.Join("testdata", "queries.txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// BenchmarkHistories asks for a month of 500 clusters, the fake server included.
func BenchmarkHistories(b *testing.B) {
	const number, days, seconds, mebibytes = 500, 30, 60, 500
	f := &fake{instances: always, used: officeHours}
	var clusters []Cluster
	for i := range number {
		clusters = append(clusters, Cluster{fmt.Sprintf("preview-%03d", i/4), fmt.Sprintf("pg-%03d", i), 1})
		f.clusters = append(f.clusters, clusters[i].Namespace+"/"+clusters[i].Name)
	}
	s := f.serve(b, Options{})
	for b.Loop() {
		began := time.Now()
		got, err := s.Histories(b.Context(), clusters, begin, begin.AddDate(0, 0, days))
		if err != nil {
			b.Fatal(err)
		}
		for _, h := range got {
			if sleep := h.Sleep(30 * time.Minute); sleep.Wakes != days {
				b.Fatalf("%+v", sleep)
			}
		}
		if took := time.Since(began); took > seconds*time.Second {
			b.Errorf("it took %s", took)
		}
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Skip(err)
	}
	peak := regexp.MustCompile(`VmHWM:\s+(\d+)`).FindSubmatch(status)
	kibibytes, err := strconv.ParseFloat(string(peak[1]), 64)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(kibibytes/1024, "peak-MiB")
	if kibibytes/1024 > mebibytes {
		b.Errorf("it took %.0f MiB", kibibytes/1024)
	}
}
