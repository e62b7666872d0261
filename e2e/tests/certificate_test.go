package tests

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"

	"k8s.io/client-go/tools/portforward"
)

// forwarded returns an address of this machine that leads to the port of a pod until end is called.
func forwarded(ctx context.Context, namespace, pod string, port int) (address string, end func(), err error) {
	url := kube.Clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("portforward").URL()
	way, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, kube.REST)
	if err != nil {
		return "", nil, fmt.Errorf("make a way to pod %s: %w", pod, err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddressesForStreaming(way, []string{"127.0.0.1"}, []string{"0:" + strconv.Itoa(port)}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		return "", nil, fmt.Errorf("forward a port to pod %s: %w", pod, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		return "", nil, fmt.Errorf("forward a port to pod %s: %w", pod, err)
	case <-ctx.Done():
		close(stop)
		return "", nil, context.Cause(ctx)
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		close(stop)
		return "", nil, fmt.Errorf("forward a port to pod %s: %w", pod, err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports[0].Local))), sync.OnceFunc(func() { close(stop) }), nil
}

// certificate returns the certificate that a server in a pod presents over TLS. It is not verified, and no client certificate
// is presented.
func certificate(ctx context.Context, namespace, pod string, port int) (*x509.Certificate, error) {
	address, end, err := forwarded(ctx, namespace, pod, port)
	if err != nil {
		return nil, err
	}
	defer end()
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // the caller compares what it gets
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to port %d of pod %s: %w", port, pod, err)
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}
