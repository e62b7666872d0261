package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const address = "10.1.0.1"

// process is the plugin in a pod.
type process struct {
	command *exec.Cmd
	log     *os.File
	ended   chan struct{}
	began   time.Time
	pod     *corev1.Pod
}

// pod makes the pod of a plugin, which is ready.
func (f *fleet) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{ObjectMeta: named(namespace, name), Spec: corev1.PodSpec{
		ServiceAccountName: "cnpg-scale-to-zero-plugin", AutomountServiceAccountToken: new(bool),
		Containers: []corev1.Container{{Name: "cnpg-i-scale-to-zero", Image: "example.org/plugin"}},
	}}
	if err := f.admin.Create(ctx, pod); err != nil {
		return nil, fmt.Errorf("create the plugin's pod: %w", err)
	}
	now := metav1.Now()
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}, StartTime: &now,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: pod.Spec.Containers[0].Name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		}},
	}
	if err := f.admin.Status().Update(ctx, pod); err != nil {
		return nil, fmt.Errorf("set the status of the plugin's pod: %w", err)
	}
	return pod, nil
}

// start runs the plugin as its Deployment does; the operator's Unix socket takes the place of certificates.
func (f *fleet) start(pod *corev1.Pod, log string) (*process, error) {
	socket := filepath.Join(f.folder, "socket")
	if err := os.MkdirAll(socket, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the socket: %w", err)
	}
	p := &process{pod: pod, ended: make(chan struct{}), command: exec.Command(f.programs.plugin, "plugin")} //nolint:noctx // kill ends it, and the kernel when this program is gone
	var err error
	if p.log, err = os.Create(filepath.Join(f.folder, log)); err != nil {
		return nil, fmt.Errorf("make the plugin's log: %w", err)
	}
	p.command.Stdout, p.command.Stderr = p.log, p.log
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.command.Env = []string{
		"KUBECONFIG=" + f.kubeconfig, "PLUGIN_SOCKET_DIR=" + socket, "LOG_LEVEL=info", "GOMEMLIMIT=400MiB", "SIDECAR_IMAGE=example.org/sidecar",
		"POD_NAME=" + pod.Name, "POD_NAMESPACE=" + pod.Namespace, "POD_UID=" + string(pod.UID), "POD_IPS=" + address, "NODE_NAME=node",
	}
	p.began = time.Now()
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start the plugin: %w", err)
	}
	go func() {
		defer close(p.ended)
		_ = p.command.Wait()
	}()
	return p, nil
}

// kill ends the plugin without notice.
func (p *process) kill() error {
	_ = p.command.Process.Kill()
	select {
	case <-p.ended:
	case <-time.After(2 * time.Minute):
		return errors.New("the plugin does not end")
	}
	_ = p.log.Close()
	return nil
}

// says counts the lines of the plugin's log that hold a text, and returns the first.
func (p *process) says(text string) (count int, first string, err error) {
	content, err := os.ReadFile(p.log.Name())
	if err != nil {
		return 0, "", fmt.Errorf("read the plugin's log: %w", err)
	}
	for line := range bytes.Lines(content) {
		if bytes.Contains(line, []byte(text)) {
			if count++; first == "" {
				first = strings.TrimSpace(string(line))
			}
		}
	}
	return count, first, nil
}

// listening counts the gateway's ports in listening, and fails if the plugin has ended.
func (p *process) listening() (int, error) {
	select {
	case <-p.ended:
		_, first, _ := p.says("")
		return 0, fmt.Errorf("the plugin ended: %s", first)
	default:
	}
	count := 0
	for _, table := range []string{"tcp", "tcp6"} {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", p.command.Process.Pid, table))
		if err != nil {
			return 0, fmt.Errorf("read the sockets: %w", err)
		}
		for line := range bytes.Lines(content) {
			fields := bytes.Fields(line)
			if len(fields) < 4 || string(fields[3]) != "0A" { // TCP_LISTEN
				continue
			}
			var port int
			_, text, _ := bytes.Cut(fields[1], []byte(":"))
			if _, err := fmt.Sscanf(string(text), "%x", &port); err == nil && 10000 <= port && port <= 29999 {
				count++
			}
		}
	}
	return count, nil
}

// openDescriptors is how many file descriptors the plugin has.
func (p *process) openDescriptors() int {
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.command.Process.Pid))
	return len(entries)
}
