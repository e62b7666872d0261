package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestWake(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	w := NewWake(registry, 20000, 5*time.Minute)
	blue := types.NamespacedName{Namespace: "shop", Name: "blue"}
	w.Woke(blue, contract.CauseConnection, waker.DepthHibernation, waker.ResultSuccess, 2500*time.Millisecond)
	w.Woke(blue, contract.CauseConnection, waker.DepthHibernation, waker.ResultTimeout, 5*time.Minute)
	w.Woke(blue, contract.CauseConnection, waker.DepthDoze, waker.ResultSuccess, 150*time.Millisecond)
	w.Woke(blue, contract.CauseBackup, waker.DepthDoze, waker.ResultSuccess, time.Second)
	w.PortsUsed(7)
	w.Queued(1)
	w.Held(gateway.Service{}, 3)
	w.Held(gateway.Service{}, -1)
	w.Spliced(gateway.Service{}, 2)
	w.Ignored(gateway.Service{}, "instance")
	w.Refused(gateway.Service{}, gateway.RefusedNoTLS)
	want := `
# HELP cnpg_scale_to_zero_gateway_ports_limit Ports that the gateway has.
# TYPE cnpg_scale_to_zero_gateway_ports_limit gauge
cnpg_scale_to_zero_gateway_ports_limit 20000
# HELP cnpg_scale_to_zero_gateway_ports_used Ports of the gateway that belong to a Service.
# TYPE cnpg_scale_to_zero_gateway_ports_used gauge
cnpg_scale_to_zero_gateway_ports_used 7
# HELP cnpg_scale_to_zero_held_connections Connections of clients that wait for their cluster.
# TYPE cnpg_scale_to_zero_held_connections gauge
cnpg_scale_to_zero_held_connections 2
# HELP cnpg_scale_to_zero_ignored_connections_total Connections to sleeping clusters that wake no cluster, by kind.
# TYPE cnpg_scale_to_zero_ignored_connections_total counter
cnpg_scale_to_zero_ignored_connections_total{reason="bare_connect"} 0
cnpg_scale_to_zero_ignored_connections_total{reason="cancel"} 0
cnpg_scale_to_zero_ignored_connections_total{reason="closed"} 0
cnpg_scale_to_zero_ignored_connections_total{reason="garbage"} 0
cnpg_scale_to_zero_ignored_connections_total{reason="ignored_client"} 0
cnpg_scale_to_zero_ignored_connections_total{reason="incomplete"} 0
cnpg_scale_to_zero_ignored_connections_total{reason="instance"} 1
cnpg_scale_to_zero_ignored_connections_total{reason="not_allowed"} 0
cnpg_scale_to_zero_ignored_connections_total{reason="pipelined"} 0
cnpg_scale_to_zero_ignored_connections_total{reason="timeout"} 0
cnpg_scale_to_zero_ignored_connections_total{reason="too_large"} 0
# HELP cnpg_scale_to_zero_queued_wakes Wakes that wait because the addresses of their clients have used up their budget of wakes, or have not used the last wake.
# TYPE cnpg_scale_to_zero_queued_wakes gauge
cnpg_scale_to_zero_queued_wakes 1
# HELP cnpg_scale_to_zero_refused_connections_total Connections that the gateway did not serve, by reason.
# TYPE cnpg_scale_to_zero_refused_connections_total counter
cnpg_scale_to_zero_refused_connections_total{reason="asleep_by_hand"} 0
cnpg_scale_to_zero_refused_connections_total{reason="closed"} 0
cnpg_scale_to_zero_refused_connections_total{reason="failed"} 0
cnpg_scale_to_zero_refused_connections_total{reason="hung_up"} 0
cnpg_scale_to_zero_refused_connections_total{reason="maintenance"} 0
cnpg_scale_to_zero_refused_connections_total{reason="no_tls"} 1
cnpg_scale_to_zero_refused_connections_total{reason="panic"} 0
cnpg_scale_to_zero_refused_connections_total{reason="reconnect"} 0
cnpg_scale_to_zero_refused_connections_total{reason="replication"} 0
cnpg_scale_to_zero_refused_connections_total{reason="sent_ahead"} 0
cnpg_scale_to_zero_refused_connections_total{reason="timeout"} 0
cnpg_scale_to_zero_refused_connections_total{reason="too_many_held"} 0
cnpg_scale_to_zero_refused_connections_total{reason="too_many_starting"} 0
cnpg_scale_to_zero_refused_connections_total{reason="too_many_spliced"} 0
cnpg_scale_to_zero_refused_connections_total{reason="unreachable"} 0
# HELP cnpg_scale_to_zero_spliced_connections Connections that go through the gateway to an instance.
# TYPE cnpg_scale_to_zero_spliced_connections gauge
cnpg_scale_to_zero_spliced_connections 2
# HELP cnpg_scale_to_zero_wakes_total Wakes of clusters, by trigger, depth of the sleep and result.
# TYPE cnpg_scale_to_zero_wakes_total counter
cnpg_scale_to_zero_wakes_total{depth="doze",result="success",trigger="backup"} 1
cnpg_scale_to_zero_wakes_total{depth="doze",result="timeout",trigger="backup"} 0
cnpg_scale_to_zero_wakes_total{depth="doze",result="by_hand",trigger="connection"} 0
cnpg_scale_to_zero_wakes_total{depth="doze",result="maintenance",trigger="connection"} 0
cnpg_scale_to_zero_wakes_total{depth="doze",result="success",trigger="connection"} 1
cnpg_scale_to_zero_wakes_total{depth="doze",result="timeout",trigger="connection"} 0
cnpg_scale_to_zero_wakes_total{depth="doze",result="success",trigger="object"} 0
cnpg_scale_to_zero_wakes_total{depth="doze",result="timeout",trigger="object"} 0
cnpg_scale_to_zero_wakes_total{depth="doze",result="success",trigger="request"} 0
cnpg_scale_to_zero_wakes_total{depth="doze",result="timeout",trigger="request"} 0
cnpg_scale_to_zero_wakes_total{depth="doze",result="success",trigger="window"} 0
cnpg_scale_to_zero_wakes_total{depth="doze",result="timeout",trigger="window"} 0
cnpg_scale_to_zero_wakes_total{depth="hibernation",result="success",trigger="backup"} 0
cnpg_scale_to_zero_wakes_total{depth="hibernation",result="timeout",trigger="backup"} 0
cnpg_scale_to_zero_wakes_total{depth="hibernation",result="success",trigger="object"} 0
cnpg_scale_to_zero_wakes_total{depth="hibernation",result="timeout",trigger="object"} 0
cnpg_scale_to_zero_wakes_total{depth="hibernation",result="success",trigger="request"} 0
cnpg_scale_to_zero_wakes_total{depth="hibernation",result="timeout",trigger="request"} 0
cnpg_scale_to_zero_wakes_total{depth="hibernation",result="success",trigger="window"} 0
cnpg_scale_to_zero_wakes_total{depth="hibernation",result="timeout",trigger="window"} 0
cnpg_scale_to_zero_wakes_total{depth="hibernation",result="by_hand",trigger="connection"} 0
cnpg_scale_to_zero_wakes_total{depth="hibernation",result="maintenance",trigger="connection"} 0
cnpg_scale_to_zero_wakes_total{depth="hibernation",result="success",trigger="connection"} 1
cnpg_scale_to_zero_wakes_total{depth="hibernation",result="timeout",trigger="connection"} 1
`
	var names []string
	for line := range strings.Lines(want) {
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ := strings.Cut(rest, " ")
			names = append(names, name)
		}
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) != 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

// Clients wait at two Services, and others come while the cluster does not wake.
func TestClusterWakes_countATimeoutOnce(t *testing.T) {
	t.Parallel()
	blue, now := types.NamespacedName{Namespace: "shop", Name: "blue"}, time.Unix(0, 0)
	w := clusterWakes{timeout: time.Minute, counts: map[types.NamespacedName]wakeCounts{}}
	for _, after := range []time.Duration{time.Hour, time.Hour + time.Second, time.Hour + time.Minute, time.Hour + 119*time.Second} {
		w.count(blue, waker.ResultTimeout, now.Add(after))
	}
	if got := w.of(blue).timedOut; got != 2 {
		t.Errorf("%d wakes timed out, want 2", got)
	}
}
