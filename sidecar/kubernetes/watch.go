package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// watchTime is how long a watch lasts before everything is read anew, in any case within five minutes.
const watchTime = 285 * time.Second

var (
	errAbsent = errors.New("the Cluster does not exist")
	errShort  = errors.New("the API server ended the watch at once")
)

// Watch calls seen with the Cluster's state now and after every change, until the context ends. While the API server is
// away nothing is called; it is tried again for ever.
//
// There is one object to watch, so that reading it anew costs as much as any request: every watch begins with that, and
// neither bookmarks nor an expired resourceVersion need a case of their own.
func (c *Client) Watch(ctx context.Context, seen func(View)) {
	wait := c.retry.first
	var told string
	for ctx.Err() == nil {
		began := time.Now()
		err := c.follow(ctx, seen)
		if ctx.Err() != nil {
			return
		}
		lasted := time.Since(began)
		if lasted >= c.retry.settled {
			wait, told = c.retry.first, ""
		} else if err == nil {
			err = errShort
		}
		if err != nil && err.Error() != told { // the same outage is told once
			told = err.Error()
			c.logger.Warn("the Cluster cannot be watched", "error", told)
		}
		// The fifth that is random keeps the sidecars from coming back all at once.
		pause(ctx, wait-time.Duration(rand.Int64N(int64(wait)/5+1)))
		wait = min(2*wait, c.retry.last)
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// follow reads the Cluster and follows it until the watch ends; nil says that it ended as agreed.
func (c *Client) follow(ctx context.Context, seen func(View)) error {
	body, err := c.get(ctx, c.resource("clusters"), url.Values{"fieldSelector": {c.selector()}})
	if err != nil {
		return fmt.Errorf("list the Cluster: %w", err)
	}
	views, version, err := decodeViews(body)
	if err != nil {
		return err
	}
	for _, v := range views {
		seen(v)
	}
	stream, end, err := c.stream(ctx, version)
	if err != nil {
		return fmt.Errorf("watch the Cluster: %w", err)
	}
	defer end()
	decoder := json.NewDecoder(stream)
	for {
		v, err := decodeChange(decoder)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("watch the Cluster: %w", err)
		case v != nil:
			seen(*v)
		}
	}
}

// stream opens a watch. It fails if the API server does not answer in time, and it is cut if the API server does not end
// it when it should.
func (c *Client) stream(ctx context.Context, version string) (io.Reader, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, watchTime+callTimeout)
	late := time.AfterFunc(callTimeout, cancel)
	//nolint:bodyclose // the caller closes it with the function that it gets
	answer, err := c.send(ctx, call{method: http.MethodGet, url: c.resource("clusters"), query: url.Values{
		"fieldSelector": {c.selector()}, "watch": {"true"}, "resourceVersion": {version},
		"timeoutSeconds": {strconv.Itoa(int(watchTime / time.Second))},
	}})
	if err != nil {
		late.Stop()
		cancel()
		return nil, nil, err
	}
	late.Stop() // if it has just struck, reading fails at once
	return answer.Body, func() {
		cancel()
		_ = answer.Body.Close()
	}, nil
}

// decodeViews reads a list of Clusters and its resourceVersion.
func decodeViews(body []byte) ([]View, string, error) {
	var found struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []cluster `json:"items"`
	}
	if err := json.Unmarshal(body, &found); err != nil {
		return nil, "", fmt.Errorf("decode the list of Clusters: %w", err)
	}
	views := make([]View, 0, len(found.Items))
	for i := range found.Items {
		views = append(views, found.Items[i].view())
	}
	return views, found.Metadata.ResourceVersion, nil
}

// decodeChange reads one event of a watch; nil says that it changes nothing that we know. Its error is that of the API
// server, mostly an expired resourceVersion, or io.EOF when the watch has ended as agreed.
func decodeChange(decoder *json.Decoder) (*View, error) {
	var event struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := decoder.Decode(&event); err != nil {
		return nil, err
	}
	switch event.Type {
	case "ADDED", "MODIFIED":
		v, err := decodeView(event.Object)
		if err != nil {
			return nil, err
		}
		return &v, nil
	case "ERROR":
		var status StatusError
		if err := json.Unmarshal(event.Object, &status); err != nil {
			return nil, fmt.Errorf("decode the API server's error: %w", err)
		}
		return nil, &status
	default:
		return nil, nil
	}
}

// selector names the one Cluster: a Role restricted by resourceNames permits list and watch only with it.
func (c *Client) selector() string { return "metadata.name=" + c.identity.Cluster }

// Get reads the Cluster from the API server.
func (c *Client) Get(ctx context.Context) (View, error) {
	body, err := c.get(ctx, c.resource("clusters", c.identity.Cluster), nil)
	var status *StatusError
	switch {
	case errors.As(err, &status) && status.Code == http.StatusNotFound:
		return View{}, fmt.Errorf("read the Cluster: %w", errAbsent)
	case err != nil:
		return View{}, fmt.Errorf("read the Cluster: %w", err)
	default:
		return decodeView(body)
	}
}
