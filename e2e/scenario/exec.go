package scenario

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/utils/ptr"
)

// Exec runs a command in a container and returns its output.
func (k *Kubernetes) Exec(ctx context.Context, namespace, pod, container string, command ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	err := k.stream(ctx, namespace, pod, container, command, nil, &stdout, &stderr)
	if err != nil {
		return stdout.String(), fmt.Errorf("run %s in %s/%s: %w: %s", command[0], pod, container, err, stderr.String())
	}
	return stdout.String(), nil
}

func (k *Kubernetes) stream(
	ctx context.Context, namespace, pod, container string, command []string, stdin io.Reader, stdout, stderr io.Writer,
) error {
	request := k.Clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).
		SubResource("exec").VersionedParams(&corev1.PodExecOptions{
		Container: container, Command: command, Stdin: stdin != nil, Stdout: true, Stderr: true,
	}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(k.REST, "GET", request.URL().String())
	if err != nil {
		return fmt.Errorf("make an executor: %w", err)
	}
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout, Stderr: stderr})
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

// Page reads a page of an HTTP server in a pod through the API server's proxy.
func (k *Kubernetes) Page(ctx context.Context, namespace, pod, port, path string) (string, error) {
	body, err := k.Clientset.CoreV1().Pods(namespace).ProxyGet("http", pod, port, path, nil).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("read %s of pod %s: %w", path, pod, err)
	}
	return string(body), nil
}

// Logs returns the log of a container, at most the last 200 lines.
func (k *Kubernetes) Logs(ctx context.Context, namespace, pod, container string) (string, error) {
	return k.log(ctx, namespace, pod, &corev1.PodLogOptions{Container: container, TailLines: ptr.To(int64(200))})
}

// LogsSince returns a container's log since a time.
func (k *Kubernetes) LogsSince(ctx context.Context, namespace, pod, container string, since time.Time) (string, error) {
	return k.log(ctx, namespace, pod, &corev1.PodLogOptions{Container: container, SinceTime: &metav1.Time{Time: since}})
}

func (k *Kubernetes) log(ctx context.Context, namespace, pod string, options *corev1.PodLogOptions) (string, error) {
	body, err := k.Clientset.CoreV1().Pods(namespace).GetLogs(pod, options).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("read the log of %s/%s: %w", pod, options.Container, err)
	}
	return string(body), nil
}
