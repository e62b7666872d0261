package tests

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"strconv"

	"k8s.io/client-go/tools/portforward"
)

// certificate returns the certificate that a server in a pod presents over TLS. It is not verified, and no client certificate
// is presented.
func certificate(ctx context.Context, namespace, pod string, port int) (*x509.Certificate, error) {
	url := kube.Clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("portforward").URL()
	way, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, kube.REST)
	if err != nil {
		return nil, fmt.Errorf("make a way to pod %s: %w", pod, err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddressesForStreaming(way, []string{"127.0.0.1"}, []string{"0:" + strconv.Itoa(port)}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		return nil, fmt.Errorf("forward a port to pod %s: %w", pod, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	defer close(stop)
	select {
	case <-ready:
	case err := <-ended:
		return nil, fmt.Errorf("forward a port to pod %s: %w", pod, err)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		return nil, fmt.Errorf("forward a port to pod %s: %w", pod, err)
	}
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // the caller compares what it gets
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports[0].Local))))
	if err != nil {
		return nil, fmt.Errorf("connect to port %d of pod %s: %w", port, pod, err)
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}
