package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// watchSeconds is how long a watch lasts before everything is read anew.
	watchSeconds = "300"
	// firstRetry and lastRetry bound the wait before another try while the API server is away.
	firstRetry, lastRetry = 500 * time.Millisecond, 5 * time.Second
)

// errGone says that the Cluster is not there.
var errGone = errors.New("the Cluster does not exist")

// Watch calls seen with the Cluster's state now and after every change, until the context ends. While the API server is
// away nothing is called; it is tried again for ever.
func (c *Client) Watch(ctx context.Context, seen func(View)) {
	backoff := retries()
	var last string
	for ctx.Err() == nil {
		err := c.watchOnce(ctx, func(v View) { backoff = retries(); seen(v) })
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			last = ""
			continue
		}
		if message := err.Error(); message != last { // the same outage is told once
			last = message
			c.logger.Warn("the Cluster cannot be watched", "error", message)
		}
		timer := time.NewTimer(backoff.Step())
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

func retries() wait.Backoff {
	return wait.Backoff{Duration: firstRetry, Cap: lastRetry, Factor: 2, Jitter: 0.2, Steps: 1 << 30}
}

// watchOnce reads the Cluster and follows it until the watch ends.
func (c *Client) watchOnce(ctx context.Context, seen func(View)) error {
	version, err := c.listOnce(ctx, seen)
	if err != nil {
		return err
	}
	stream, err := c.resources.Get().Namespace(c.identity.Namespace).Resource("clusters").
		Param("fieldSelector", c.selector()).Param("watch", "true").Param("resourceVersion", version).
		Param("timeoutSeconds", watchSeconds).Stream(ctx)
	if err != nil {
		return fmt.Errorf("watch the Cluster: %w", err)
	}
	defer func() { _ = stream.Close() }()
	decoder := json.NewDecoder(stream)
	for {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := decoder.Decode(&event); err != nil {
			if errors.Is(err, io.EOF) {
				return nil // the API server ends every watch after a while
			}
			return fmt.Errorf("watch the Cluster: %w", err)
		}
		switch event.Type {
		case "ADDED", "MODIFIED":
			view, err := decodeView(event.Object)
			if err != nil {
				return err
			}
			seen(view)
		case "ERROR": // an expired resourceVersion, mostly: read everything anew
			return fmt.Errorf("watch the Cluster: %w", errors.New("the API server ended the watch with an error"))
		}
	}
}

func (c *Client) listOnce(ctx context.Context, seen func(View)) (string, error) {
	body, err := c.list(ctx, "clusters", c.selector())
	if err != nil {
		return "", err
	}
	var found struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []cluster `json:"items"`
	}
	if err := json.Unmarshal(body, &found); err != nil {
		return "", fmt.Errorf("decode the list of Clusters: %w", err)
	}
	for i := range found.Items {
		seen(found.Items[i].view())
	}
	return found.Metadata.ResourceVersion, nil
}

// selector names the one Cluster: a Role restricted by resourceNames permits list and watch only with it.
func (c *Client) selector() string { return "metadata.name=" + c.identity.Cluster }

// Get reads the Cluster from the API server.
func (c *Client) Get(ctx context.Context) (View, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	body, err := c.resources.Get().Namespace(c.identity.Namespace).Resource("clusters").Name(c.identity.Cluster).Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err):
		return View{}, fmt.Errorf("read the Cluster: %w", errGone)
	case err != nil:
		return View{}, fmt.Errorf("read the Cluster: %w", err)
	default:
		return decodeView(body)
	}
}
