package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/client_golang/api"
	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/cnpg-i/scale-to-zero/e2e/monitoring"
)

// prometheus is a local Prometheus server that scrapes the cluster.
type prometheus struct {
	prometheusv1.API
	address    string // as a URL
	process    *exec.Cmd
	discovered sync.WaitGroup
	forget     context.CancelFunc
}

// scrapeInterval is also the scrape timeout.
const scrapeInterval = "2s"

// configurationFile is the name of Prometheus' configuration.
const configurationFile = "prometheus.yaml"

// startPrometheus starts the program with the monitors, the rules and, if given, the address of an Alertmanager. It keeps all
// files in the directory. The caller must stop it. Debian's Prometheus has no Kubernetes service discovery: this package
// discovers the targets and writes them to files.
func startPrometheus(
	ctx context.Context, program, directory string, monitors []monitoring.Monitor, rules monitoringv1.PrometheusRuleSpec, alertmanager string,
) (*prometheus, error) {
	directory, err := filepath.Abs(directory) // Prometheus takes the names in its configuration as relative to that
	if err != nil {
		return nil, fmt.Errorf("find Prometheus' directory: %w", err)
	}
	reached, err := access(directory)
	if err != nil {
		return nil, err
	}
	groups, err := yaml.Marshal(rules)
	if err != nil {
		return nil, fmt.Errorf("encode the rules: %w", err)
	}
	configuration, err := monitoring.Configuration(monitors, reached, "rules.yaml", scrapeInterval, alertmanager)
	if err != nil {
		return nil, err
	}
	for name, body := range map[string][]byte{"rules.yaml": groups, configurationFile: configuration} {
		if err := os.WriteFile(filepath.Join(directory, name), body, 0o600); err != nil {
			return nil, fmt.Errorf("write Prometheus' configuration: %w", err)
		}
	}
	if err := discover(ctx, directory, monitors, reached); err != nil {
		return nil, err
	}
	p, err := runPrometheus(ctx, program, directory)
	if err != nil {
		return nil, err
	}
	discovering, forget := context.WithCancel(ctx)
	p.forget = forget
	p.discovered.Go(func() { keepDiscovering(discovering, directory, monitors, reached) })
	return p, nil
}

// runPrometheus starts the program with the configuration in the directory and waits until it listens.
func runPrometheus(ctx context.Context, program, directory string) (*prometheus, error) {
	log := &prometheusLog{address: make(chan string, 1)}
	process := exec.CommandContext(context.WithoutCancel(ctx), program, "--config.file="+filepath.Join(directory, configurationFile),
		"--storage.tsdb.path="+filepath.Join(directory, "data"), "--web.listen-address=127.0.0.1:0")
	process.Stderr = log
	if err := process.Start(); err != nil {
		return nil, fmt.Errorf("start Prometheus: %w", err)
	}
	p := &prometheus{process: process, forget: func() {}}
	select {
	case address := <-log.address:
		p.address = "http://" + address
		client, err := api.NewClient(api.Config{Address: p.address})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("make a client of Prometheus: %w", err), p.Stop())
		}
		p.API = prometheusv1.NewAPI(client)
		return p, nil
	case <-time.After(toHealthy):
		return nil, errors.Join(fmt.Errorf("start Prometheus: it does not listen: %s", log), p.Stop())
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("start Prometheus: %w", ctx.Err()), p.Stop())
	}
}

// Stop stops the process.
func (p *prometheus) Stop() error {
	p.forget()
	p.discovered.Wait()
	if err := p.process.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop Prometheus: %w", err)
	}
	var ended *exec.ExitError
	if err := p.process.Wait(); err != nil && !errors.As(err, &ended) {
		return fmt.Errorf("wait for Prometheus' end: %w", err)
	}
	return nil
}

// Await evaluates the expression repeatedly until it has a result other than NaN.
func (p *prometheus) Await(ctx context.Context, expression string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		value, _, _, err := p.Query(ctx, expression, time.Now())
		if vector, is := value.(model.Vector); err == nil && is && len(vector) != 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("Prometheus has no %s within %s: %w%s", expression, within, errors.Join(ctx.Err(), err), p.failures(ctx))
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// failures lists the targets whose last scrape failed.
func (p *prometheus) failures(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	targets, err := p.Targets(ctx)
	if err != nil {
		return "; its targets cannot be read: " + err.Error()
	}
	text := fmt.Sprintf("; it has %d targets", len(targets.Active))
	for _, target := range targets.Active {
		if target.Health != prometheusv1.HealthGood {
			text += fmt.Sprintf("; %s/%s: %s %s", target.Labels["namespace"], target.Labels["pod"], target.Health, target.LastError)
		}
	}
	return text
}

// keepDiscovering keeps the target files up to date. Failures, such as a list while the API server is away, are retried.
func keepDiscovering(ctx context.Context, directory string, monitors []monitoring.Monitor, access monitoring.Access) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			_ = discover(ctx, directory, monitors, access)
		}
	}
}

// discover writes the targets that the monitors currently select.
func discover(ctx context.Context, directory string, monitors []monitoring.Monitor, access monitoring.Access) error {
	var pods corev1.PodList
	if err := kube.List(ctx, &pods); err != nil {
		return fmt.Errorf("list the pods: %w", err)
	}
	var services corev1.ServiceList
	if err := kube.List(ctx, &services); err != nil {
		return fmt.Errorf("list the Services: %w", err)
	}
	for _, monitor := range monitors {
		body, err := json.Marshal(monitor.Targets(access, services.Items, pods.Items))
		if err != nil {
			return fmt.Errorf("encode the targets: %w", err)
		}
		path := filepath.Join(directory, monitor.TargetsFile())
		if err := os.WriteFile(path+".new", body, 0o600); err != nil {
			return fmt.Errorf("write the targets: %w", err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			return fmt.Errorf("replace the targets: %w", err)
		}
	}
	return nil
}

// access writes the kubeconfig's credentials to files.
func access(directory string) (monitoring.Access, error) {
	host, err := url.Parse(kube.REST.Host)
	if err != nil {
		return monitoring.Access{}, fmt.Errorf("read the API server's address: %w", err)
	}
	found := monitoring.Access{Host: host.Host}
	tls := kube.REST.TLSClientConfig
	found.Certificates = monitoring.Certificates{CA: tls.CAFile, Cert: tls.CertFile, Key: tls.KeyFile}
	found.TokenFile = kube.REST.BearerTokenFile
	for _, proof := range []struct {
		name    string
		content []byte
		file    *string
	}{
		{"ca.crt", tls.CAData, &found.Certificates.CA},
		{"client.crt", tls.CertData, &found.Certificates.Cert},
		{"client.key", tls.KeyData, &found.Certificates.Key},
		{"token", []byte(kube.REST.BearerToken), &found.TokenFile},
	} {
		if len(proof.content) == 0 {
			continue
		}
		*proof.file = filepath.Join(directory, proof.name)
		if err := os.WriteFile(*proof.file, proof.content, 0o600); err != nil {
			return monitoring.Access{}, fmt.Errorf("write %s: %w", proof.name, err)
		}
	}
	if found.Certificates.Cert == "" && found.TokenFile == "" {
		return monitoring.Access{}, errNoProof
	}
	return found, nil
}

// errNoProof means that a kubeconfig authenticates by running a program, which Prometheus cannot do.
var errNoProof = errors.New("the kubeconfig has neither a certificate nor a token of its own")

// prometheusLog stores Prometheus' log and extracts the address from it.
type prometheusLog struct {
	address chan string

	mutex sync.Mutex
	text  bytes.Buffer
	found bool
}

// listening matches the line with Prometheus' port.
var listening = regexp.MustCompile(`msg="Listening on" address=(\S+)`)

// Write never fails.
func (l *prometheusLog) Write(part []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.text.Write(part)
	if found := listening.FindSubmatch(l.text.Bytes()); found != nil && !l.found {
		l.found = true
		l.address <- string(found[1])
	}
	return len(part), nil
}

func (l *prometheusLog) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.String()
}
