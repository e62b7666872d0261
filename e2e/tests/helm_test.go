package tests

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"helm.sh/helm/v4/pkg/action"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/cli"
	helmkube "helm.sh/helm/v4/pkg/kube"

	"github.com/cnpg-i/scale-to-zero/e2e/chart"
)

// helm is where the chart is installed: a namespace of the cluster that KUBECONFIG names.
type helm struct {
	namespace     string
	within        time.Duration
	configuration *action.Configuration
	logs          *bytes.Buffer
}

// helmIn returns a helm for a namespace of the cluster, whose actions may take at most the given time.
func helmIn(namespace string, within time.Duration) (*helm, error) {
	h := &helm{
		namespace: namespace, within: within, logs: &bytes.Buffer{},
		configuration: action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler)),
	}
	settings := cli.New()
	settings.SetNamespace(namespace)
	if err := h.configuration.Init(settings.RESTClientGetter(), namespace, "secret"); err != nil {
		return nil, fmt.Errorf("connect Helm with the cluster: %w", err)
	}
	h.configuration.SetHookOutputFunc(func(_, _, _ string) io.Writer { return h.logs })
	return h, nil
}

// install installs the chart and waits until what it made is ready. What somebody else installed under the same names becomes
// the release's.
func (h *helm) install(ctx context.Context, loaded *chartv2.Chart, values map[string]any) error {
	install := action.NewInstall(h.configuration)
	install.ReleaseName, install.Namespace, install.Timeout = chart.Release, h.namespace, h.within
	install.WaitStrategy, install.TakeOwnership, install.ForceConflicts = helmkube.StatusWatcherStrategy, true, true
	if _, err := install.RunWithContext(ctx, loaded, values); err != nil {
		return fmt.Errorf("install the chart: %w", err)
	}
	return nil
}

// upgrade changes the release to these values and waits until what it made is ready. Who installed it before owns the fields too.
func (h *helm) upgrade(ctx context.Context, loaded *chartv2.Chart, values map[string]any) error {
	upgrade := action.NewUpgrade(h.configuration)
	upgrade.Namespace, upgrade.Timeout = h.namespace, h.within
	upgrade.WaitStrategy, upgrade.ForceConflicts = helmkube.StatusWatcherStrategy, true
	if _, err := upgrade.RunWithContext(ctx, chart.Release, loaded, values); err != nil {
		return fmt.Errorf("upgrade the release: %w", err)
	}
	return nil
}

// rollback returns the release to a revision.
func (h *helm) rollback(revision int) error {
	rollback := action.NewRollback(h.configuration)
	rollback.Version, rollback.Timeout = revision, h.within
	rollback.WaitStrategy, rollback.ForceConflicts = helmkube.StatusWatcherStrategy, true
	if err := rollback.Run(chart.Release); err != nil {
		return fmt.Errorf("roll the release back to revision %d: %w", revision, err)
	}
	return nil
}

// uninstall removes the release, if there is one, and waits until what it made is gone. The error of a hook has its log.
func (h *helm) uninstall(hooks bool) error {
	h.logs.Reset()
	uninstall := action.NewUninstall(h.configuration)
	uninstall.Timeout, uninstall.WaitStrategy = h.within, helmkube.StatusWatcherStrategy
	uninstall.IgnoreNotFound, uninstall.DisableHooks = true, !hooks
	if _, err := uninstall.Run(chart.Release); err != nil {
		return fmt.Errorf("uninstall the release: %w: %s", err, h.logs)
	}
	return nil
}
