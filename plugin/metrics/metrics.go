// Package metrics exposes what the plugin does and the state of the clusters: only the plugin can provide the series of
// a sleeping cluster.
package metrics

import (
	"context"
	"strings"
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/cnpgi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
)

// prefix is the prefix of every metric.
const prefix = "cnpg_scale_to_zero_"

// Injections counts the calls of the lifecycle hook.
type Injections struct{ total *prometheus.CounterVec }

// NewInjections makes the counter, preset to zero for every label combination.
func NewInjections(registerer prometheus.Registerer) *Injections {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "injections_total", Help: "Calls of the lifecycle hook, by result.",
	}, []string{"operation", "result"})
	for _, operation := range []string{"create", "evaluate"} {
		for _, result := range cnpgi.Results() {
			total.WithLabelValues(operation, string(result))
		}
	}
	registerer.MustRegister(total)
	return &Injections{total}
}

// RegisterBuildInfo registers the version of the plugin.
func RegisterBuildInfo(registerer prometheus.Registerer, version string) {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: prefix + "plugin_build_info", Help: "The version of the plugin.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	info.Set(1)
	registerer.MustRegister(info)
}

// Injected counts a call.
func (i *Injections) Injected(operation string, result cnpgi.Result) {
	i.total.WithLabelValues(operation, string(result)).Inc()
}

// Certificates shows the expiry of the certificates used between plugin and operator.
type Certificates struct {
	// expiry reads the expiry of each certificate by name.
	expiry      func() (map[string]time.Time, error)
	description *prometheus.Desc
}

// NewCertificates makes the collector; expiry is called at each scrape.
func NewCertificates(expiry func() (map[string]time.Time, error)) *Certificates {
	return &Certificates{expiry, prometheus.NewDesc(prefix+"certificate_expiry_timestamp_seconds",
		"When the certificate that the plugin (server) or the operator (client) presents expires; absent while the plugin cannot read it.", []string{"certificate"}, nil)}
}

// Describe sends the description.
func (c *Certificates) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- c.description }

// Collect reads the certificates again at each scrape, because they are replaced while the plugin runs.
func (c *Certificates) Collect(metrics chan<- prometheus.Metric) {
	ends, err := c.expiry()
	if err != nil {
		return
	}
	for certificate, end := range ends {
		metrics <- prometheus.MustNewConstMetric(c.description, prometheus.GaugeValue, float64(end.Unix()), certificate)
	}
}

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
