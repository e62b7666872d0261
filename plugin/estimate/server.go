package estimate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"
)

// Step is the time between two samples. The exporter keeps its answers for half as long.
const Step = time.Minute

// The limits of one query, which stay below those of a Prometheus: 11,000 points a series, and 50 million samples in
// memory. If a server allows less, the query is halved, down to an hour of one cluster.
const (
	clustersAtOnce = 20
	longest        = 7 * 24 * time.Hour
	shortest       = time.Hour
	queriesAtOnce  = 4
)

// beyond are the errors of a server that a smaller query may avoid.
var beyond = []v1.ErrorType{v1.ErrExec, v1.ErrTimeout, v1.ErrBadData, v1.ErrServer}

// Options say how to reach a server, or what speaks its API.
type Options struct {
	URL, TokenFile, CAFile string
	// Headers are added to each request, such as the tenant.
	Headers map[string]string
	// Match is added to each selector, for a server that has the metrics of several Kubernetes clusters.
	Match string
}

// Server is a Prometheus.
type Server struct {
	api   v1.API
	match string
}

// Open makes a client; it makes no request yet.
func Open(o Options) (*Server, error) {
	address, err := url.Parse(o.URL)
	if err != nil || address.Scheme != "http" && address.Scheme != "https" || address.Host == "" {
		return nil, fmt.Errorf("%q is not the URL of a Prometheus, such as https://prometheus.example.com", o.URL)
	}
	transport := api.DefaultRoundTripper.(*http.Transport).Clone()
	if o.CAFile != "" {
		certificates, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the authorities of the Prometheus: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(certificates) {
			return nil, fmt.Errorf("%s has no certificate in PEM", o.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	headers := http.Header{}
	for name, value := range o.Headers {
		headers.Set(name, value)
	}
	if o.TokenFile != "" {
		token, err := os.ReadFile(o.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("read the token for the Prometheus: %w", err)
		}
		headers.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	client, err := api.NewClient(api.Config{Address: o.URL, RoundTripper: sender{transport, address.Host, headers}})
	if err != nil {
		return nil, fmt.Errorf("make a client of the Prometheus: %w", err)
	}
	match := o.Match
	if match != "" {
		match = "," + match
	}
	return &Server{api: v1.NewAPI(client), match: match}, nil
}

// sender adds the headers, but not to what another host is asked after a redirect.
type sender struct {
	next    http.RoundTripper
	host    string
	headers http.Header
}

// RoundTrip implements http.RoundTripper.
func (s sender) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Host == s.host {
		request = request.Clone(request.Context())
		for name, values := range s.headers {
			request.Header[name] = values
		}
		if host := s.headers.Get("Host"); host != "" {
			request.Host = host
		}
	}
	return s.next.RoundTrip(request)
}

// each asks about all clusters and the whole time by parts that a server allows. No two parts have a cluster and a time
// in common.
func each(ctx context.Context, clusters []Cluster, from, to time.Time, ask question) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(queriesAtOnce)
	for batch := range slices.Chunk(clusters, clustersAtOnce) {
		for begin := from; !begin.After(to); begin = begin.Add(longest) {
			end := begin.Add(longest - Step)
			if end.After(to) {
				end = to
			}
			group.Go(func() error { return ask.split(ctx, batch, begin, end) })
		}
	}
	return group.Wait()
}

// question asks about some clusters, and the samples from a time to another, both included.
type question func(ctx context.Context, clusters []Cluster, from, to time.Time) error

// split asks, and if that is beyond what the server allows, asks about half of the clusters at once, or half of the
// time.
func (ask question) split(ctx context.Context, clusters []Cluster, from, to time.Time) error {
	err := ask(ctx, clusters, from, to)
	var answered *v1.Error
	if !errors.As(err, &answered) || !slices.Contains(beyond, answered.Type) {
		return err
	}
	if middle := len(clusters) / 2; middle > 0 {
		if err := ask.split(ctx, clusters[:middle], from, to); err != nil {
			return err
		}
		return ask.split(ctx, clusters[middle:], from, to)
	}
	middle := from.Add((to.Sub(from) / 2).Truncate(Step))
	if middle.Sub(from) < shortest/2 {
		return err
	}
	if err := ask.split(ctx, clusters, from, middle); err != nil {
		return err
	}
	return ask.split(ctx, clusters, middle.Add(Step), to)
}

// samples asks for the values of an expression at each step.
func (s *Server) samples(ctx context.Context, expression string, from, to time.Time) (model.Matrix, error) {
	value, warnings, _, err := s.api.QueryRange(ctx, expression, v1.Range{Start: from, End: to, Step: Step})
	return answer[model.Matrix](value, warnings, err)
}

// values asks for the values of an expression at one time.
func (s *Server) values(ctx context.Context, expression string, at time.Time) (model.Vector, error) {
	value, warnings, _, err := s.api.Query(ctx, expression, at)
	return answer[model.Vector](value, warnings, err)
}

// answer refuses one that may lack series, which would pass for a cluster that nobody uses.
func answer[T model.Value](value model.Value, warnings v1.Warnings, err error) (T, error) {
	answered, ok := value.(T)
	switch {
	case err != nil:
		return answered, fmt.Errorf("ask the Prometheus: %w", err)
	case len(warnings) != 0:
		return answered, fmt.Errorf("the answer of the Prometheus may be incomplete: %s", strings.Join(warnings, "; "))
	case !ok:
		return answered, fmt.Errorf("the answer of the Prometheus is a %T", value)
	}
	return answered, nil
}
