package scenario

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ended reports whether a process has ended.
func ended(process int) bool { return errors.Is(syscall.Kill(process, 0), syscall.ESRCH) }

// StandBetween puts a proxy between pods and the API server until the returned function is called. behaves gets the handler that passes
// requests on, and returns the one that the proxy serves. Each process is one of a pod's on this machine. The proxy presents the API
// server's own certificate, which only a cluster made here has beside its kubeconfig; without it the error is ErrNotHere.
func (k *Kubernetes) StandBetween(
	ctx context.Context, processes []int, behaves func(pass http.Handler) http.Handler,
) (restore func() error, err error) {
	pki := filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "pki")
	pair, err := tls.LoadX509KeyPair(filepath.Join(pki, "apiserver.crt"), filepath.Join(pki, "apiserver.key"))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotHere, err)
	}
	target, err := url.Parse(k.REST.Host)
	if err != nil {
		return nil, fmt.Errorf("read the API server's address: %w", err)
	}
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(k.REST)) // each pod presents its own token
	if err != nil {
		return nil, fmt.Errorf("trust the API server: %w", err)
	}
	address, err := k.ownAddress(ctx)
	if err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(address.String(), "0"))
	if err != nil {
		return nil, fmt.Errorf("listen for the pods: %w", err)
	}
	server := &http.Server{
		ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}},
		Handler: behaves(&httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport, FlushInterval: -1,
		}),
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	lead := func(ctx context.Context, verb string) (failed error) {
		for _, process := range slices.DeleteFunc(slices.Clone(processes), ended) { // its network has gone with it
			failed = errors.Join(failed, k.lead(ctx, verb, process, "--table", "nat", "--jump", "DNAT", "--to-destination", listener.Addr().String()),
				k.lead(ctx, verb, process, "--jump", "REJECT", "--reject-with", "tcp-reset")) // of connections that are open
		}
		return failed
	}
	restore = func() error { return errors.Join(lead(context.WithoutCancel(ctx), "--delete"), server.Close()) }
	if err := lead(ctx, "--append"); err != nil {
		return nil, errors.Join(err, restore())
	}
	return restore, nil
}

// lead appends or deletes an iptables rule for the packets that a pod sends to the API server. process is one of the pod's on this
// machine.
func (k *Kubernetes) lead(ctx context.Context, verb string, process int, rule ...string) error {
	var service corev1.Service
	if err := k.Get(ctx, client.ObjectKey{Namespace: "default", Name: "kubernetes"}, &service); err != nil {
		return fmt.Errorf("read the API server's Service: %w", err)
	}
	command := exec.CommandContext(ctx, "nsenter", append([]string{
		"--net", "--target", strconv.Itoa(process), "iptables", verb, "OUTPUT", "--protocol", "tcp",
		"--destination", service.Spec.ClusterIP, "--dport", strconv.Itoa(int(service.Spec.Ports[0].Port)),
	}, rule...)...)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("change the pod's iptables rules: %w: %s", err, out)
	}
	return nil
}
