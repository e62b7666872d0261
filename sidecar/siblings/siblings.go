// Package siblings asks the sidecars of the other instances what they last saw.
package siblings

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
)

const (
	// timeout bounds one question.
	timeout = time.Second
	// maximumAnswer bounds, in bytes, what is read of an answer; the pages are some hundred bytes.
	maximumAnswer = 64 << 10
)

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
	Report activity.Report
	Err    error
}

// Ask asks all instances at once, by the name of the pod, and waits for every answer, a second at most.
func (c *Client) Ask(ctx context.Context, instances map[string]netip.Addr) []Answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var group sync.WaitGroup
	answers := make(chan Answer, len(instances))
	for pod, address := range instances {
		group.Go(func() {
			report, err := c.ask(ctx, pod, address)
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

func (c *Client) ask(ctx context.Context, pod string, address netip.Addr) (activity.Report, error) {
	target := url.URL{Scheme: "http", Host: netip.AddrPortFrom(address, c.port).String(), Path: "/activity"}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return activity.Report{}, fmt.Errorf("make the request: %w", err)
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return activity.Report{}, fmt.Errorf("ask %s: %w", pod, err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return activity.Report{}, fmt.Errorf("ask %s: %w: status %d", pod, errAnswer, answer.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maximumAnswer+1))
	if err != nil {
		return activity.Report{}, fmt.Errorf("ask %s: %w", pod, err)
	}
	report, err := activity.DecodeReport(body)
	if err != nil {
		return activity.Report{}, fmt.Errorf("ask %s: %w", pod, err)
	}
	// An address may have gone to a pod of another cluster meanwhile.
	if report.Cluster != c.cluster || report.Pod != pod {
		return activity.Report{}, fmt.Errorf("ask %s: %w: it is %s of %s", pod, errAnswer, report.Pod, report.Cluster)
	}
	return report, nil
}
