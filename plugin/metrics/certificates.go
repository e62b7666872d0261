package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Certificates shows the expiry of the certificates used between plugin and operator.
type Certificates struct {
	// expiry reads the expiry of each certificate by name.
	expiry      func() (map[string]time.Time, error)
	description *prometheus.Desc
}

// NewCertificates makes the collector; expiry is called at each scrape.
func NewCertificates(expiry func() (map[string]time.Time, error)) *Certificates {
	return &Certificates{expiry, prometheus.NewDesc(prefix+"certificate_expiry_timestamp_seconds",
		"When the certificate that the plugin (server) or the operator (client) presents expires; absent while it cannot be read.", []string{"certificate"}, nil)}
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
