package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Question is a request that a pod sends to the API server.
type Question struct {
	// Verb and Path are the HTTP method and path, Type is the body's content type.
	Verb, Path, Type string
	// Body is JSON, or empty.
	Body json.RawMessage `json:",omitempty"`
}

// Answer is the API server's answer.
type Answer struct {
	// Code is the HTTP status.
	Code int
	// Body is an object, or a Status.
	Body json.RawMessage
}

// Message returns the message of a Status; empty if the answer is an object.
func (a Answer) Message() string {
	var status struct{ Kind, Message string }
	if json.Unmarshal(a.Body, &status) != nil || status.Kind != "Status" {
		return ""
	}
	return status.Message
}

// inside is where the program is put in an instance's pod: a volume that CloudNativePG mounts for itself.
const inside = "/controller/ask"

// AskFrom sends the requests from inside an instance's pod with the pod's own token, using the program of e2e/cmd/ask at that
// path.
func (k *Kubernetes) AskFrom(ctx context.Context, namespace, pod, program string, questions []Question) ([]Answer, error) {
	if err := k.Put(ctx, namespace, pod, "postgres", program, inside); err != nil {
		return nil, err
	}
	var lines bytes.Buffer
	for _, question := range questions {
		if err := json.NewEncoder(&lines).Encode(question); err != nil {
			return nil, fmt.Errorf("write a question: %w", err)
		}
	}
	var stdout, stderr bytes.Buffer
	if err := k.stream(ctx, namespace, pod, "postgres", []string{inside}, &lines, &stdout, &stderr); err != nil {
		return nil, fmt.Errorf("ask from %s/%s: %w: %s", namespace, pod, err, stderr.String())
	}
	var answers []Answer
	for in := json.NewDecoder(&stdout); ; {
		var answer Answer
		if err := in.Decode(&answer); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read the answers: %w", err)
		}
		answers = append(answers, answer)
	}
	if len(answers) != len(questions) {
		return nil, fmt.Errorf("%d questions have %d answers: %s", len(questions), len(answers), stderr.String())
	}
	return answers, nil
}

// Put copies a local program into a container.
func (k *Kubernetes) Put(ctx context.Context, namespace, pod, container, program, path string) error {
	file, err := os.Open(program)
	if err != nil {
		return fmt.Errorf("read the program: %w", err)
	}
	defer func() { _ = file.Close() }()
	var stdout, stderr bytes.Buffer
	write := []string{"sh", "-c", "cat > " + path + " && chmod 0700 " + path}
	if err := k.stream(ctx, namespace, pod, container, write, file, &stdout, &stderr); err != nil {
		return fmt.Errorf("put the program into %s/%s: %w: %s", namespace, pod, err, stderr.String())
	}
	return nil
}
