// Command ask sends requests to the API server as the pod does that it runs in: from there, and with the pod's own token. It reads
// them from its standard input, one in a line of JSON, and answers each with a line.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"k8s.io/client-go/rest"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// toAnswer bounds a request.
const toAnswer = 30 * time.Second

func main() {
	if err := run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "ask:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, questions io.Reader, answers io.Writer) error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("read the pod's own configuration: %w", err)
	}
	config.Timeout = toAnswer
	server, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	in, out := json.NewDecoder(questions), json.NewEncoder(answers)
	for {
		var question scenario.Question
		if err := in.Decode(&question); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read a question: %w", err)
		}
		answer, err := ask(ctx, server, config.Host, question)
		if err != nil {
			return err
		}
		if err := out.Encode(answer); err != nil {
			return fmt.Errorf("write an answer: %w", err)
		}
	}
}

func ask(ctx context.Context, server *http.Client, host string, question scenario.Question) (scenario.Answer, error) {
	request, err := http.NewRequestWithContext(ctx, question.Verb, host+question.Path, bytes.NewReader(question.Body))
	if err != nil {
		return scenario.Answer{}, fmt.Errorf("make a request: %w", err)
	}
	request.Header.Set("Content-Type", question.Type)
	response, err := server.Do(request)
	if err != nil {
		return scenario.Answer{}, fmt.Errorf("send %s %s: %w", question.Verb, question.Path, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return scenario.Answer{}, fmt.Errorf("read the answer to %s %s: %w", question.Verb, question.Path, err)
	}
	return scenario.Answer{Code: response.StatusCode, Body: body}, nil
}
