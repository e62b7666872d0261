// Package siblings asks the sidecars of the other instances what they last saw.
package siblings

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
	// timeout bounds one question.
	timeout = time.Second
	// sampleTimeout bounds one that asks for a sample, which itself may take three seconds.
	sampleTimeout = 4 * time.Second
)

// ErrOutdated says that an instance's sidecar is too old to sample on demand.
var ErrOutdated = errors.New("the sidecar does not sample on demand")

// errAnswer says that an answer is not one of the instance that was asked.
var errAnswer = errors.New("unusable answer")

// Client asks.
type Client struct {
	cluster string
	port    uint16
	http    *http.Client
}

// NewClient makes a client for the instances of a cluster, whose sidecars all listen on the same port.
func NewClient(cluster string, port uint16) *Client {
	return &Client{cluster: cluster, port: port, http: &http.Client{
		// A connection that is kept would be a socket that is reported when it ends; there is one question in a threshold.
		Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 8 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Answer is what one instance said.
type Answer struct {
	// Pod is the instance.
	Pod string
	// Report means something only without an error.
	Report contract.Report
	Err    error
}

// Ask asks all instances at once what they last saw, by the name of the pod, and waits for every answer, a second at most.
func (c *Client) Ask(ctx context.Context, instances map[string]netip.Addr) []Answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return c.askAll(ctx, instances, "")
}

// Sample has all instances sampled at once, and returns what they saw in samples that began after the call. It waits for every
// answer, four seconds at most. The error of an instance that is too old for that is [ErrOutdated].
func (c *Client) Sample(ctx context.Context, instances map[string]netip.Addr) []Answer {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	return c.askAll(ctx, instances, rand.Text())
}

// askAll asks all instances; with a nonce it asks for a sample.
func (c *Client) askAll(ctx context.Context, instances map[string]netip.Addr, nonce string) []Answer {
	var group sync.WaitGroup
	answers := make(chan Answer, len(instances))
	for pod, address := range instances {
		group.Go(func() {
			report, err := c.ask(ctx, pod, address, nonce)
			if err == nil && report.Nonce != nonce {
				err = fmt.Errorf("sample %s: %w", pod, ErrOutdated)
			}
			answers <- Answer{Pod: pod, Report: report, Err: err}
		})
	}
	group.Wait()
	close(answers)
	all := make([]Answer, 0, len(instances))
	for answer := range answers {
		all = append(all, answer)
	}
	return all
}

func (c *Client) ask(ctx context.Context, pod string, address netip.Addr, nonce string) (contract.Report, error) {
	target := url.URL{Scheme: "http", Host: netip.AddrPortFrom(address, c.port).String(), Path: contract.PathActivity}
	if nonce != "" {
		target.RawQuery = url.Values{contract.ParameterSample: {nonce}}.Encode()
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
	body, err := io.ReadAll(io.LimitReader(answer.Body, contract.MaximumReport+1))
	if err != nil {
		return contract.Report{}, fmt.Errorf("ask %s: %w", pod, err)
	}
	report, err := contract.DecodeReport(body)
	if err != nil {
		return contract.Report{}, fmt.Errorf("ask %s: %w", pod, err)
	}
	// An address may have gone to a pod of another cluster meanwhile.
	if report.Cluster != c.cluster || report.Pod != pod {
		return contract.Report{}, fmt.Errorf("ask %s: %w: it is %s of %s", pod, errAnswer, report.Pod, report.Cluster)
	}
	return report, nil
}
