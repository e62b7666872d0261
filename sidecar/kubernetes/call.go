package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

const (
	// callTimeout bounds every call but the watch.
	callTimeout = 5 * time.Second
	// maximumAnswer bounds, in bytes, what is read of one answer; a page of hundred objects is some 500 KiB.
	maximumAnswer = 8 << 20
	// maximumFailure bounds, in bytes, what is read of a failure.
	maximumFailure = 16 << 10
)

// StatusError is the API server's refusal.
type StatusError struct {
	// Code is the HTTP status, Reason Kubernetes' word for it, and Message what a person may read.
	Code            int
	Reason, Message string
}

// Error gives the code and the message.
func (e *StatusError) Error() string {
	return fmt.Sprintf("the API server answers %d: %s", e.Code, e.Message)
}

// Is makes a conflict an [ErrConflict].
func (e *StatusError) Is(target error) bool {
	return target == ErrConflict && e.Code == http.StatusConflict
}

// call is one request.
type call struct {
	method      string
	url         *url.URL
	query       url.Values
	contentType string
	body        []byte
}

// send sends a request and returns an answer that is a success. The caller closes its body.
func (c *Client) send(ctx context.Context, r call) (*http.Response, error) {
	if err := c.limiter.Wait(ctx); err != nil {
		return nil, fmt.Errorf("wait for our own limit of requests: %w", err)
	}
	target := *r.url
	target.RawQuery = r.query.Encode()
	request, err := http.NewRequestWithContext(ctx, r.method, target.String(), bytes.NewReader(r.body))
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	request.Header.Set("Accept", "application/json")
	if r.contentType != "" {
		request.Header.Set("Content-Type", r.contentType)
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return nil, err // net/http names the method and the URL
	}
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		defer func() { _ = answer.Body.Close() }()
		return nil, refusal(answer)
	}
	return answer, nil
}

// refusal reads why a request was refused. A proxy in between may answer something else than a Status.
func refusal(answer *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(answer.Body, maximumFailure)) // the code alone says enough
	status := StatusError{Code: answer.StatusCode}
	var said struct{ Reason, Message string }
	if json.Unmarshal(body, &said) == nil {
		status.Reason, status.Message = said.Reason, said.Message
	}
	if status.Message == "" {
		status.Message = http.StatusText(status.Code)
	}
	return &status
}

// read returns the whole answer to a request.
func (c *Client) read(ctx context.Context, r call) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maximumAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if len(body) > maximumAnswer {
		return nil, fmt.Errorf("read the answer: it is longer than %d bytes", maximumAnswer)
	}
	return body, nil
}

// get reads an object or a list.
func (c *Client) get(ctx context.Context, target *url.URL, query url.Values) ([]byte, error) {
	return c.read(ctx, call{method: http.MethodGet, url: target, query: query})
}
