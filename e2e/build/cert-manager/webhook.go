package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"

	certmanager "github.com/cert-manager/cert-manager/internal/webhook"
	logf "github.com/cert-manager/cert-manager/pkg/logs"
	"github.com/cert-manager/cert-manager/pkg/webhook/options"
)

// webhook validates what people ask cert-manager for.
func webhook(ctx context.Context, arguments []string) error {
	ctrl.SetLogger(logf.Log)
	settings, err := options.NewWebhookConfiguration()
	if err != nil {
		return fmt.Errorf("read the defaults: %w", err)
	}
	if err := parse(arguments, func(flags *pflag.FlagSet) { options.AddConfigFlags(flags, settings) }); err != nil {
		return fmt.Errorf("read the flags: %w", err)
	}
	server, err := certmanager.NewCertManagerWebhookServer(logf.FromContext(ctx), *settings)
	if err != nil {
		return fmt.Errorf("make the webhook: %w", err)
	}
	return server.Run(ctx)
}
