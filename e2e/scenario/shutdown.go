package scenario

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ErrNoShutdown means that the log ended before a complete shutdown.
var ErrNoShutdown = errors.New("no shutdown of PostgreSQL in the log")

// Shutdown is a shutdown of PostgreSQL by its node's clock: the request in its log, and the last line.
type Shutdown struct{ Requested, Ended time.Time }

// Logged is what PostgreSQL says in a line of an instance's log, and when; nothing if the line is another's.
func Logged(text []byte) (at time.Time, message string) {
	var line struct {
		At     time.Time `json:"ts"`
		Record struct {
			Message string `json:"message"`
		} `json:"record"`
	}
	if json.Unmarshal(text, &line) != nil {
		return time.Time{}, ""
	}
	return line.At, line.Record.Message
}

// Shutdown follows the log of an instance from now on. The returned function waits for PostgreSQL's next shutdown.
func (k *Kubernetes) Shutdown(ctx context.Context, namespace, pod string) (func() (Shutdown, error), error) {
	since := int64(1)
	stream, err := k.Clientset.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{
		Container: "postgres", Follow: true, SinceSeconds: &since,
	}).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("follow the log of %s: %w", pod, err)
	}
	return func() (Shutdown, error) {
		defer func() { _ = stream.Close() }()
		var requested time.Time
		lines := bufio.NewScanner(stream)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			switch at, message := Logged(lines.Bytes()); {
			case strings.HasPrefix(message, "received") && strings.HasSuffix(message, "shutdown request") && requested.IsZero():
				requested = at
			case message == "database system is shut down" && !requested.IsZero():
				return Shutdown{Requested: requested, Ended: at}, nil
			}
		}
		return Shutdown{}, ErrNoShutdown
	}, nil
}
