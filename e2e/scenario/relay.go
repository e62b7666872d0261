package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Relay forwards connections of a pod to the API server, whose answers it can lose.
type Relay struct {
	listener net.Listener
	server   string

	mutex  sync.Mutex
	losing bool
	conns  map[net.Conn]struct{}
}

// Relay redirects the connections to the API server that a pod opens from now on through a Relay. process is a local process of
// the pod; the redirect is a rule in the pod's network namespace and disappears with it.
func (k *Kubernetes) Relay(ctx context.Context, process int) (*Relay, error) {
	address, err := k.ownAddress(ctx)
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(k.REST.Host)
	if err != nil {
		return nil, fmt.Errorf("read the API server's address: %w", err)
	}
	var service corev1.Service
	if err := k.Get(ctx, client.ObjectKey{Namespace: "default", Name: "kubernetes"}, &service); err != nil {
		return nil, fmt.Errorf("read the API server's Service: %w", err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(address.String(), "0"))
	if err != nil {
		return nil, fmt.Errorf("listen for the pod: %w", err)
	}
	rule := exec.CommandContext(ctx, "nsenter", "--net", "--target", strconv.Itoa(process), "iptables", "--table", "nat", "--append", "OUTPUT",
		"--protocol", "tcp", "--destination", service.Spec.ClusterIP, "--dport", strconv.Itoa(int(service.Spec.Ports[0].Port)),
		"--jump", "DNAT", "--to-destination", listener.Addr().String())
	if out, err := rule.CombinedOutput(); err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("lead the pod's connections here: %w: %s", err, out)
	}
	r := &Relay{listener: listener, server: server.Host, conns: map[net.Conn]struct{}{}}
	go r.serve(ctx)
	return r, nil
}

// Lose closes the open connections as soon as the API server says something, which is lost; later ones are forwarded as before.
func (r *Relay) Lose() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.losing = true
}

// cut closes the open connections. The caller holds the mutex.
func (r *Relay) cut() {
	for conn := range r.conns {
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
	clear(r.conns)
	r.losing = false
}

// Connections returns the number of the pod's open connections.
func (r *Relay) Connections() int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return len(r.conns)
}

// Close closes the Relay and its connections.
func (r *Relay) Close() error {
	err := r.listener.Close()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.cut()
	if err != nil {
		return fmt.Errorf("stop listening for the pod: %w", err)
	}
	return nil
}

func (r *Relay) serve(ctx context.Context) {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		go r.pass(ctx, conn)
	}
}

// pass copies in both directions until one side ends.
func (r *Relay) pass(ctx context.Context, pod net.Conn) {
	defer r.forget(pod)
	r.mutex.Lock()
	r.conns[pod] = struct{}{}
	r.mutex.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, "tcp", r.server)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	go func() {
		_, _ = io.Copy(server, pod)
		_ = server.Close()
	}()
	_, _ = io.Copy(unlessLost{r, pod}, server)
}

func (r *Relay) forget(pod net.Conn) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	delete(r.conns, pod)
	_ = pod.Close()
}

// unlessLost writes the API server's answers to the pod, unless they are to be lost.
type unlessLost struct {
	relay *Relay
	pod   net.Conn
}

// errCut means that a connection was closed on purpose.
var errCut = errors.New("the connection was cut")

func (u unlessLost) Write(part []byte) (int, error) {
	u.relay.mutex.Lock()
	if u.relay.losing {
		u.relay.cut()
	}
	_, open := u.relay.conns[u.pod]
	u.relay.mutex.Unlock()
	if !open {
		return 0, errCut
	}
	count, err := u.pod.Write(part)
	if err != nil {
		return count, fmt.Errorf("write to the pod: %w", err)
	}
	return count, nil
}
