package scenario

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// clientPod is the name of the pod that runs psql, one per namespace.
const clientPod = "client"

// StartClient starts a pod with psql, from the cluster's image, and waits until it reaches the cluster.
func (k *Kubernetes) StartClient(ctx context.Context, c *cnpgv1.Cluster) error {
	if err := k.StartClientPod(ctx, c); err != nil {
		return err
	}
	return k.AwaitReachable(ctx, c, "rw", toStart)
}

// toStart bounds the start of a pod whose image is on its node, or of a process of this machine, and the wait for kube-proxy.
const toStart = 3 * time.Minute

// StartClientPod applies the changes, such as of the node, and starts the pod. Unlike StartClient, it does not wait for the cluster.
func (k *Kubernetes) StartClientPod(ctx context.Context, c *cnpgv1.Cluster, changes ...func(*corev1.Pod)) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: clientPod},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To(int64(0)),
			Containers: []corev1.Container{{
				Name: clientPod, Image: c.Status.Image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command:   []string{"sleep", "infinity"},
				Resources: c.Spec.Resources,
			}},
		},
	}
	for _, change := range changes {
		change(pod)
	}
	if err := k.Create(ctx, pod); err != nil {
		return fmt.Errorf("create the client pod: %w", err)
	}
	_, err := Await(ctx, k, pod, "running", toStart, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	return err
}

// AwaitReachable waits until a client can connect through a Service of the cluster: kube-proxy learns of a ready instance a
// little later than the Cluster's status.
func (k *Kubernetes) AwaitReachable(ctx context.Context, c *cnpgv1.Cluster, service string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		_, err := k.QueryAs(ctx, c, service, "connect_timeout=5", "select 1") // it is tried again
		if err == nil {
			return nil
		}
		if Rest(ctx, 200*time.Millisecond) != nil {
			return fmt.Errorf("reach %s-%s within %s: %w", c.Name, service, within, err)
		}
	}
}

// Session is an open psql.
type Session struct {
	input *io.PipeWriter
	lines *bufio.Scanner
	ended chan error
	count int
}

// psql returns the command line that connects to a Service of the cluster as the application's user.
func (k *Kubernetes) psql(ctx context.Context, c *cnpgv1.Cluster, service string) ([]string, error) {
	var secret corev1.Secret
	key := client.ObjectKey{Namespace: c.Namespace, Name: c.Name + "-app"}
	if err := k.Get(ctx, key, &secret); err != nil {
		return nil, fmt.Errorf("read the application's Secret: %w", err)
	}
	return []string{
		"env", "PGPASSWORD=" + string(secret.Data["password"]),
		"psql", "-XAtq", "-v", "ON_ERROR_STOP=0",
		fmt.Sprintf("host=%s-%s user=app dbname=app sslmode=require connect_timeout=60", c.Name, service),
	}, nil
}

// Open connects psql to a Service of the cluster and returns once it is connected. service is "rw", "ro", "r", or what follows
// the cluster's name in that of a Pooler.
func (k *Kubernetes) Open(ctx context.Context, c *cnpgv1.Cluster, service string) (*Session, error) {
	return k.OpenAs(ctx, c, service, "")
}

// OpenAs is Open with further connection settings, such as "application_name=x".
func (k *Kubernetes) OpenAs(ctx context.Context, c *cnpgv1.Cluster, service, settings string) (*Session, error) {
	command, err := k.psql(ctx, c, service)
	if err != nil {
		return nil, err
	}
	command[len(command)-1] += " " + settings
	return k.open(ctx, c.Namespace, clientPod, clientPod, command)
}

// Client runs a shell script in the client's pod.
func (k *Kubernetes) Client(ctx context.Context, namespace, script string) (string, error) {
	return k.Exec(ctx, namespace, clientPod, clientPod, "bash", "-c", script)
}

// OpenLocalAs connects psql over the Unix socket of an instance with connection settings, by default as the superuser.
func (k *Kubernetes) OpenLocalAs(ctx context.Context, namespace, pod, settings string) (*Session, error) {
	return k.open(ctx, namespace, pod, "postgres", []string{"psql", "-XAtq", "user=postgres " + settings})
}

func (k *Kubernetes) open(ctx context.Context, namespace, pod, container string, command []string) (*Session, error) {
	stdin, input := io.Pipe()
	output, stdout := io.Pipe()
	session := &Session{input: input, lines: bufio.NewScanner(output), ended: make(chan error, 1)}
	go func() {
		err := k.stream(ctx, namespace, pod, container, command, stdin, stdout, stdout)
		_ = stdout.CloseWithError(io.EOF)
		_ = stdin.CloseWithError(io.ErrClosedPipe)
		session.ended <- err
	}()
	if err := session.Run("select 1"); err != nil {
		_ = input.Close()
		return nil, fmt.Errorf("connect psql: %w", err)
	}
	return session, nil
}

// Run sends statements and waits until psql has processed them; errors of the statements are not returned.
func (s *Session) Run(statements string) error {
	s.count++
	mark := fmt.Sprintf("mark-%d", s.count)
	if _, err := fmt.Fprintf(s.input, "%s;\n\\echo %s\n", statements, mark); err != nil {
		return fmt.Errorf("write to psql: %w", err)
	}
	var seen []string
	for s.lines.Scan() {
		line := s.lines.Text()
		if line == mark {
			return nil
		}
		seen = append(seen, line)
	}
	return fmt.Errorf("psql ended: %s", strings.Join(seen, "; "))
}

// Send sends a statement without waiting for it.
func (s *Session) Send(statement string) error {
	_, err := fmt.Fprintf(s.input, "%s;\n", statement)
	return err
}

// Close ends psql and returns the times between which its session ended.
func (s *Session) Close() (before, after time.Time) {
	before = time.Now()
	// Only closing the input does not suffice after a minute without a write: client-go sends the end with the deadline of the
	// last write (0.36.2: tools/remotecommand/websocket.go, stream.Close), and the failure ends the session a minute later.
	_, _ = fmt.Fprintln(s.input, `\q`)
	_ = s.input.Close()
	for s.lines.Scan() {
		continue
	}
	<-s.ended
	return before, time.Now()
}

// Query runs one statement in its own session and returns its output.
func (k *Kubernetes) Query(ctx context.Context, c *cnpgv1.Cluster, service, statement string) (string, error) {
	return k.QueryAs(ctx, c, service, "", statement)
}

// QueryAs is Query with further connection settings, which override the usual ones.
func (k *Kubernetes) QueryAs(ctx context.Context, c *cnpgv1.Cluster, service, settings, statement string) (string, error) {
	command, err := k.psql(ctx, c, service)
	if err != nil {
		return "", err
	}
	command[len(command)-1] += " " + settings
	out, err := k.Exec(ctx, c.Namespace, clientPod, clientPod, append(command, "-c", statement)...)
	return strings.TrimSpace(out), err
}
