package metrics

import (
	"context"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
)

// Results of a call.
const (
	resultOK     = "ok"
	resultFailed = "failed"
)

// Calls counts the operator's calls.
type Calls struct{ total *prometheus.CounterVec }

// NewCalls makes the counter, preset to zero for every method of the services.
func NewCalls(registerer prometheus.Registerer, services ...grpc.ServiceDesc) *Calls {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "operator_calls_total", Help: "Calls of the operator that the plugin answered, by result.",
	}, []string{"method", "result"})
	for _, service := range services {
		for _, method := range service.Methods {
			name := methodName("/" + service.ServiceName + "/" + method.MethodName)
			total.WithLabelValues(name, resultOK)
			total.WithLabelValues(name, resultFailed)
		}
	}
	registerer.MustRegister(total)
	return &Calls{total}
}

// Intercept counts a call.
func (c *Calls) Intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	answer, err := handler(ctx, request)
	result := resultOK
	if err != nil {
		result = resultFailed
	}
	c.total.WithLabelValues(methodName(info.FullMethod), result).Inc()
	return answer, err
}

// methodName is a method with its service, without the service's package.
func methodName(fullMethod string) string {
	return fullMethod[strings.LastIndexByte(fullMethod, '.')+1:]
}
