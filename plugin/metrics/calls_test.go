package metrics

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	lifecycleapi "github.com/cloudnative-pg/cnpg-i/pkg/lifecycle"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
)

func TestCalls_countEveryMethodFromZero(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	calls := NewCalls(registry, lifecycleapi.OperatorLifecycle_ServiceDesc)
	for _, failed := range []error{nil, nil, errors.New("the plugin failed")} {
		info := &grpc.UnaryServerInfo{FullMethod: lifecycleapi.OperatorLifecycle_LifecycleHook_FullMethodName}
		answer, err := calls.Intercept(t.Context(), nil, info, func(context.Context, any) (any, error) { return "answer", failed })
		if answer != "answer" || !errors.Is(err, failed) {
			t.Errorf("the answer became %v, %v", answer, err)
		}
	}
	const want = `
# HELP cnpg_scale_to_zero_operator_calls_total Calls of the operator that the plugin answered, by result.
# TYPE cnpg_scale_to_zero_operator_calls_total counter
cnpg_scale_to_zero_operator_calls_total{method="OperatorLifecycle/GetCapabilities",result="failed"} 0
cnpg_scale_to_zero_operator_calls_total{method="OperatorLifecycle/GetCapabilities",result="ok"} 0
cnpg_scale_to_zero_operator_calls_total{method="OperatorLifecycle/LifecycleHook",result="failed"} 1
cnpg_scale_to_zero_operator_calls_total{method="OperatorLifecycle/LifecycleHook",result="ok"} 2
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestCertificates_areAbsentWhileTheyCannotBeRead(t *testing.T) {
	t.Parallel()
	ends := map[string]time.Time{"server": noon}
	var broken error
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewCertificates(func() (map[string]time.Time, error) { return ends, broken }))
	if got := page(t, registry); !strings.Contains(got, `certificate_expiry_timestamp_seconds{certificate="server"} 1.7724528e+09`) {
		t.Errorf("shown:\n%s", got)
	}
	broken = errors.New("no such file")
	if got := page(t, registry); got != "" {
		t.Errorf("shown:\n%s", got)
	}
}
