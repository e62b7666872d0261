package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
)

func TestWake(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	w := NewWake(registry, 20000)
	w.Woke(waker.ResultSuccess, 2500*time.Millisecond)
	w.Woke(waker.ResultTimeout, 5*time.Minute)
	w.PortsUsed(7)
	w.Held(3)
	w.Held(-1)
	w.Spliced(2)
	w.Ignored("instance")
	w.Refused("not_allowed")
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
# HELP cnpg_scale_to_zero_ignored_connections_total Connections to sleeping clusters that wake nobody, by what they are.
# TYPE cnpg_scale_to_zero_ignored_connections_total counter
cnpg_scale_to_zero_ignored_connections_total{reason="ignored_client"} 0
cnpg_scale_to_zero_ignored_connections_total{reason="instance"} 1
# HELP cnpg_scale_to_zero_refused_connections_total Connections that the gateway did not serve, by why.
# TYPE cnpg_scale_to_zero_refused_connections_total counter
cnpg_scale_to_zero_refused_connections_total{reason="not_allowed"} 1
# HELP cnpg_scale_to_zero_spliced_connections Connections that go through the gateway to an instance.
# TYPE cnpg_scale_to_zero_spliced_connections gauge
cnpg_scale_to_zero_spliced_connections 2
# HELP cnpg_scale_to_zero_wakes_total Wakes that clients asked for, by what began them and how they ended.
# TYPE cnpg_scale_to_zero_wakes_total counter
cnpg_scale_to_zero_wakes_total{result="by_hand",trigger="connection"} 0
cnpg_scale_to_zero_wakes_total{result="success",trigger="connection"} 1
cnpg_scale_to_zero_wakes_total{result="timeout",trigger="connection"} 1
`
	var names []string
	for line := range strings.Lines(want) {
		if rest, is := strings.CutPrefix(line, "# TYPE "); is {
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
