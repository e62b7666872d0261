package tests

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// growth is how much the memory of all plugin replicas together may grow in a flood, in bytes. Other tests use the same
	// gateways.
	growth = 48 << 20

	ignored = `cnpg_scale_to_zero_ignored_connections_total{reason="%s"}`
	refused = `cnpg_scale_to_zero_refused_connections_total{reason="%s"}`
	crowded = `cnpg_scale_to_zero_refused_connections_total{reason="too_many_starting"}`
	// silent are connections of which the gateway has read no startup packet within a minute: none was sent, or it stood still.
	silent   = `cnpg_scale_to_zero_ignored_connections_total{reason="timeout"}`
	resident = "process_resident_memory_bytes"
	opened   = "process_open_fds"
)

// flooding is held by a test that floods the gateways, because it reads the metrics of all their connections and their memory.
var flooding sync.Mutex

// A flood of connections that are not clients wakes no sleeping cluster and takes no memory permanently, and clients are served
// afterwards.
func TestFloodsWakeNobody(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "flooded", 1, never))
	s.sleeps(c)
	s.awaitSlices(c, toSettle, "rw", "r")
	at := "/dev/tcp/" + s.address(c, "rw") + "/5432"
	flooding.Lock()
	defer flooding.Unlock()
	before := s.gateways()
	for _, flood := range []struct {
		rule   string
		count  int
		script string
		metric string
	}{
		{"bare connects", 2000, ": >" + at, fmt.Sprintf(ignored, "bare_connect")},
		{"garbage", 1000, "printf '%01024d' 7 >" + at, fmt.Sprintf(ignored, "garbage")},
		{"cancel requests", 5000, `printf '\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01\x00\x00\x00\x02' >` + at, fmt.Sprintf(ignored, "cancel")},
		{"replication", 1000, `printf '\x00\x00\x00\x21\x00\x03\x00\x00user\x00u\x00replication\x00true\x00\x00' >` + at, fmt.Sprintf(refused, "replication")},
	} {
		start := s.gateways()
		_, err := kube.Client(s.ctx, s.namespace, fmt.Sprintf("trap '' PIPE; for i in {1..%d}; do %s; done 2>/dev/null", flood.count, flood.script))
		s.must(err)
		s.counted(start, flood.count, flood.metric, crowded, silent)
		s.flat(before, flood.rule)
	}
	for _, endpoint := range s.ports(c) { // a scan of the gateway's own ports, some of which belong to this cluster
		_, err := kube.Client(s.ctx, s.namespace, fmt.Sprintf("for p in {%d..%d}; do : >/dev/tcp/%s/$p; done 2>/dev/null; true",
			endpoint.port-100, endpoint.port+100, endpoint.address))
		s.must(err)
	}
	s.flat(before, "a port scan")
	s.halfOpen(before, at)
	s.asleep(c, "nobody was a client")
	began := time.Now()
	answer, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 'answered'")
	if err != nil || answer != "answered" {
		t.Errorf("afterwards a client got %q (%v)", answer, err)
	}
	s.wokenSince(c, began, "nobody was a client before")
}

// halfOpen opens a thousand connections that send a byte now and then, and checks that they are closed.
func (s *story) halfOpen(before figures, at string) {
	s.Helper()
	const count = 1000
	start := s.gateways()
	ended := make(chan error, 1)
	go func() {
		_, err := kube.Client(s.ctx, s.namespace, fmt.Sprintf(`exec 2>/dev/null; ulimit -n 4096; trap '' PIPE
for i in {1..%d}; do exec {f}<>%s || exit 1; all+=($f); printf '\x16\x03\x01\x02\x00\x01' >&$f; done
for i in {1..11}; do for f in "${all[@]}"; do printf '\x00' >&$f; done; sleep 6; done; true`, count, at))
		ended <- err
	}()
	most := 0.0
	for going := true; going; {
		select {
		case err := <-ended:
			s.must(err)
			going = false
		case <-time.After(500 * time.Millisecond):
			most = max(most, s.gateways()[resident])
		}
	}
	s.counted(start, count, silent, crowded)
	held := s.gateways()[silent] - start[silent]
	s.Logf("%.0f connections were held until their time was over, with at most %.1f MiB more than before", held, (most-before[resident])/(1<<20))
	if held < count/4 {
		s.Errorf("only %.0f of them were held: this shows nothing", held)
	}
	if grew := most - before[resident]; grew > growth {
		s.Errorf("they took %.1f MiB, want at most %d", grew/(1<<20), growth>>20)
	}
	for deadline := time.Now().Add(toSettle); s.gateways()[opened] > start[opened]+count/10; pause(s, pollEvery) {
		if time.Now().After(deadline) {
			s.Fatalf("%.0f descriptors are open, %.0f were before", s.gateways()[opened], start[opened])
		}
	}
	s.flat(before, "half-open connections")
}

// figures are the summed metrics of all replicas of the plugin.
type figures map[string]float64

// gateways reads the metrics.
func (s *story) gateways() figures {
	s.Helper()
	var pods corev1.PodList
	s.must(kube.List(s.ctx, &pods, client.InNamespace(scenario.OperatorNamespace), client.MatchingLabels(s.plugin().Spec.Selector.MatchLabels)))
	sum := figures{}
	for i := range pods.Items {
		page, err := kube.Page(s.ctx, scenario.OperatorNamespace, pods.Items[i].Name, "8080", "metrics")
		s.must(err)
		for line := range strings.Lines(page) {
			if name, value, is := strings.Cut(strings.TrimSpace(line), " "); is && name != "#" {
				number, err := strconv.ParseFloat(value, 64)
				if err == nil {
					sum[name] += number
				}
			}
		}
	}
	return sum
}

// counted checks that the gateways soon have counted that many more connections.
func (s *story) counted(before figures, count int, metrics ...string) {
	s.Helper()
	for deadline := time.Now().Add(toSettle); ; pause(s, pollEvery) {
		now, sum := s.gateways(), 0.0
		for _, metric := range metrics {
			sum += now[metric] - before[metric]
		}
		if sum >= float64(count) {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("%.0f of %d are counted as %v", sum, count, metrics)
		}
	}
}

// flat checks that the gateways' memory is about the same as before.
func (s *story) flat(before figures, what string) {
	s.Helper()
	grew := s.gateways()[resident] - before[resident]
	s.Logf("after %s: %.1f MiB, %+.1f", what, (before[resident]+grew)/(1<<20), grew/(1<<20))
	if grew > growth {
		s.Errorf("%s took %.1f MiB, want at most %d", what, grew/(1<<20), growth>>20)
	}
}

// address returns the ClusterIP of a Service of the cluster.
func (s *story) address(c *cnpgv1.Cluster, service string) string {
	s.Helper()
	var found corev1.Service
	s.must(kube.Get(s.ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Name + "-" + service}, &found))
	return found.Spec.ClusterIP
}

type endpoint struct {
	address string
	port    int32
}

// ports returns the endpoints in the gateway's slices of the cluster.
func (s *story) ports(c *cnpgv1.Cluster) []endpoint {
	s.Helper()
	var list discoveryv1.EndpointSliceList
	s.must(kube.List(s.ctx, &list, client.InNamespace(c.Namespace), client.MatchingLabels{
		discoveryv1.LabelManagedBy: gatewaySlices, discoveryv1.LabelServiceName: c.Name + "-rw",
	}))
	var found []endpoint
	for _, slice := range list.Items {
		found = append(found, endpoint{slice.Endpoints[0].Addresses[0], *slice.Ports[0].Port})
	}
	return found
}
