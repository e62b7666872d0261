package control

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

const (
	// siblingTimeout bounds a request without a sample.
	siblingTimeout = time.Second
	// siblingSampleTimeout bounds a request for a sample, which itself may take three seconds.
	siblingSampleTimeout = 4 * time.Second
)

// errOutdated means that an instance's sidecar is too old to sample on demand.
var errOutdated = errors.New("the sidecar does not sample on demand")

// errAnswer means that the answer is an HTTP error, or is not that of the requested instance.
var errAnswer = errors.New("unusable answer")

// SiblingClient asks the sidecars of the other instances for their reports.
type SiblingClient struct {
	cluster string
	port    uint16
	http    *http.Client
	// within and sampleWithin are the timeouts; only tests of what is answered change them.
	within, sampleWithin time.Duration
}

// NewSiblingClient makes a client for the instances of a cluster, whose sidecars all listen on the same port.
func NewSiblingClient(cluster string, port uint16) *SiblingClient {
	return &SiblingClient{cluster: cluster, port: port, within: siblingTimeout, sampleWithin: siblingSampleTimeout, http: &http.Client{
		// Requests are rare, so connections are not kept.
		Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 8 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// siblingAnswer is the answer of one instance.
type siblingAnswer struct {
	// Pod is the instance's pod.
	Pod string
	// Report is valid only if Err is nil.
	Report contract.Report
	Err    error
}

// Ask asks all instances, given by pod name, concurrently for their reports: for the newest ones, within a second, or,
// if sample is set, for those of samples that began after the call, within four. For an instance too old to sample on
// demand the error is errOutdated.
func (c *SiblingClient) Ask(ctx context.Context, instances map[string]netip.Addr, sample bool) []siblingAnswer {
	within, nonce := c.within, ""
	if sample {
		within, nonce = c.sampleWithin, rand.Text()
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var group sync.WaitGroup
	answers := make(chan siblingAnswer, len(instances))
	for pod, address := range instances {
		group.Go(func() {
			report, err := c.ask(ctx, pod, address, nonce)
			if err == nil && report.Nonce != nonce {
				err = fmt.Errorf("sample %s: %w", pod, errOutdated)
			}
			answers <- siblingAnswer{Pod: pod, Report: report, Err: err}
		})
	}
	group.Wait()
	close(answers)
	all := make([]siblingAnswer, 0, len(instances))
	for answer := range answers {
		all = append(all, answer)
	}
	return all
}

func (c *SiblingClient) ask(ctx context.Context, pod string, address netip.Addr, nonce string) (contract.Report, error) {
	target := url.URL{Scheme: "http", Host: netip.AddrPortFrom(address, c.port).String(), Path: contract.PathActivity}
	if nonce != "" {
		target.RawQuery = url.Values{contract.QueryParameterSample: {nonce}}.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return contract.Report{}, fmt.Errorf("make the request: %w", err)
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return contract.Report{}, fmt.Errorf("ask %s: %w", pod, err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return contract.Report{}, fmt.Errorf("ask %s: %w: status %d", pod, errAnswer, answer.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, contract.MaxReportBytes+1))
	if err != nil {
		return contract.Report{}, fmt.Errorf("ask %s: %w", pod, err)
	}
	report, err := contract.DecodeReport(body)
	if err != nil {
		return contract.Report{}, fmt.Errorf("ask %s: %w", pod, err)
	}
	// The address may have been reassigned to a pod of another cluster.
	if report.Cluster != c.cluster || report.Pod != pod {
		return contract.Report{}, fmt.Errorf("ask %s: %w: it is %s of %s", pod, errAnswer, report.Pod, report.Cluster)
	}
	return report, nil
}
