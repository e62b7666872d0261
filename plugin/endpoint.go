package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/cnpg-i/scale-to-zero/plugin/cnpgi"
	"github.com/cnpg-i/scale-to-zero/plugin/config"
	"github.com/cnpg-i/scale-to-zero/plugin/endpoint"
	"github.com/cnpg-i/scale-to-zero/sidecar/httpserver"
)

// serveEndpoint serves the endpoint that wakes clusters, with the certificate that the operator sees, until the context
// ends.
func serveEndpoint(ctx context.Context, c config.Config, manager ctrl.Manager, woken *wakeGateway) error {
	if !manager.GetCache().WaitForCacheSync(ctx) {
		return nil
	}
	controller := woken.controller
	encrypted, err := cnpgi.EndpointTLS(certificateFiles(c), controller.Logger)
	if err != nil {
		return err
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", c.WakeEndpointAddress)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", c.WakeEndpointAddress, err)
	}
	served := &endpoint.Endpoint{
		Client: manager.GetClient(), APIReader: manager.GetAPIReader(), Pods: controller.Informers.Pods, Group: c.Group,
		Logger: controller.Logger,
	}
	// What strangers can use is limited. A request may ask the API server several times.
	return httpserver.ServeListener(ctx, tls.NewListener(listener, encrypted), served.Handler(),
		httpserver.Config{WriteTimeout: 15 * time.Second, MaximumConnections: 128})
}
