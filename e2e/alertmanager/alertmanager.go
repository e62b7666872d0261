// Package alertmanager runs a real Alertmanager with the configuration that this project ships, and reports which alerts it inhibits.
package alertmanager

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"sigs.k8s.io/yaml"
)

// toStart bounds the start of the process.
const toStart = 2 * time.Minute

// configuration has the fields that the shipped part of Alertmanager's configuration may have, and to which a test adds.
type configuration struct {
	Route struct {
		Receiver string   `json:"receiver"`
		GroupBy  []string `json:"group_by"`
		Routes   []any    `json:"routes"`
	} `json:"route"`
	Receivers    []map[string]any `json:"receivers"`
	InhibitRules []any            `json:"inhibit_rules"`
}

// Alertmanager is a process on this machine that sends no notifications.
type Alertmanager struct {
	// Address is the host and port that Prometheus sends alerts to.
	Address string
	ended   <-chan error
}

// Start starts the program with a file that has the shipped part of the configuration, and waits until it answers. It ends with the
// context, and keeps its data in the directory.
func Start(ctx context.Context, program, shipped, directory string) (*Alertmanager, error) {
	body, err := whole(shipped)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(directory, "alertmanager.yaml")
	if err := os.WriteFile(path, body, 0o600); err != nil {
		return nil, fmt.Errorf("write Alertmanager's configuration: %w", err)
	}
	address, err := free(ctx)
	if err != nil {
		return nil, err
	}
	var log bytes.Buffer
	process := exec.CommandContext(ctx, program, "--config.file="+path, "--storage.path="+filepath.Join(directory, "alertmanager"),
		"--web.listen-address="+address, "--cluster.listen-address=")
	process.Stderr = &log
	if err := process.Start(); err != nil {
		return nil, fmt.Errorf("start Alertmanager: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	a := &Alertmanager{Address: address, ended: ended}
	deadline := time.After(toStart)
	for {
		if _, err := a.States(ctx); err == nil {
			return a, nil
		}
		select {
		case err := <-ended:
			return nil, fmt.Errorf("start Alertmanager: %w: %s", errors.Join(err, errEnded), log.String())
		case <-deadline:
			return nil, fmt.Errorf("start Alertmanager: %w", context.DeadlineExceeded)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Wait waits for the process' end.
func (a *Alertmanager) Wait() { <-a.ended }

// whole is a configuration with the shipped part.
func whole(shipped string) ([]byte, error) {
	part, err := os.ReadFile(shipped)
	if err != nil {
		return nil, fmt.Errorf("read the shipped part of Alertmanager's configuration: %w", err)
	}
	var c configuration
	if err := yaml.UnmarshalStrict(part, &c); err != nil {
		return nil, fmt.Errorf("decode the shipped part of Alertmanager's configuration: %w", err)
	}
	c.Route.Receiver, c.Route.GroupBy = "people", []string{"namespace"}
	c.Receivers = append(c.Receivers, map[string]any{"name": "people"})
	body, err := yaml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode Alertmanager's configuration: %w", err)
	}
	return body, nil
}

// free is an address that nobody listens on.
func free(ctx context.Context) (string, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return listener.Addr().String(), listener.Close()
}

// Send gives it alerts with the labels, as a Prometheus does.
func (a *Alertmanager) Send(ctx context.Context, all []map[string]string) error {
	alerts := make([]map[string]any, 0, len(all))
	for _, labels := range all {
		alerts = append(alerts, map[string]any{"labels": labels})
	}
	body, err := json.Marshal(alerts)
	if err != nil {
		return fmt.Errorf("encode the alerts: %w", err)
	}
	return a.call(ctx, http.MethodPost, bytes.NewReader(body), nil)
}

// State is what becomes of an alert.
type State struct {
	Labels map[string]string
	// To are the receivers that are told, unless it is Inhibited: then nobody is.
	To        []string
	Inhibited bool
}

// Told reports whether the receiver "people" is notified of the alert.
func (s State) Told() bool { return !s.Inhibited && slices.Contains(s.To, "people") }

// States are those of all alerts.
func (a *Alertmanager) States(ctx context.Context) ([]State, error) {
	var answer []struct {
		Labels    map[string]string `json:"labels"`
		Receivers []struct {
			Name string `json:"name"`
		} `json:"receivers"`
		Status struct {
			InhibitedBy []string `json:"inhibitedBy"`
		} `json:"status"`
	}
	if err := a.call(ctx, http.MethodGet, http.NoBody, &answer); err != nil {
		return nil, err
	}
	states := make([]State, 0, len(answer))
	for _, alert := range answer {
		state := State{Labels: alert.Labels, Inhibited: len(alert.Status.InhibitedBy) != 0}
		for _, receiver := range alert.Receivers {
			state.To = append(state.To, receiver.Name)
		}
		states = append(states, state)
	}
	return states, nil
}

// Await polls the states until wanted accepts them, because Alertmanager inhibits an alert a moment after it has arrived. It returns the
// last states, and no error if wanted never accepts them.
func (a *Alertmanager) Await(ctx context.Context, within time.Duration, wanted func([]State) bool) ([]State, error) {
	for deadline := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		states, err := a.States(ctx) // fails once the context has ended
		if err != nil || wanted(states) || time.Now().After(deadline) {
			return states, err
		}
	}
}

// call asks for the alerts, or sends some.
func (a *Alertmanager) call(ctx context.Context, method string, body io.Reader, into any) error {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+a.Address+"/api/v2/alerts", body)
	if err != nil {
		return fmt.Errorf("make a request of Alertmanager: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("ask Alertmanager: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%w %s", errRefused, answer.Status)
	}
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(answer.Body).Decode(into); err != nil {
		return fmt.Errorf("decode Alertmanager's answer: %w", err)
	}
	return nil
}

var (
	errEnded   = errors.New("it ended")
	errRefused = errors.New("Alertmanager answers with")
)
