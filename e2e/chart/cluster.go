package chart

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
	"helm.sh/helm/v4/pkg/kube"
)

// Cluster is where the chart is installed: a namespace of the cluster that KUBECONFIG names.
type Cluster struct {
	namespace     string
	within        time.Duration
	configuration *action.Configuration
	logs          *bytes.Buffer
}

// Connect is a cluster's namespace, in which nothing may take longer than the given time.
func Connect(namespace string, within time.Duration) (*Cluster, error) {
	c := &Cluster{
		namespace: namespace, within: within, logs: &bytes.Buffer{},
		configuration: action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler)),
	}
	settings := cli.New()
	settings.SetNamespace(namespace)
	if err := c.configuration.Init(settings.RESTClientGetter(), namespace, "secret"); err != nil {
		return nil, fmt.Errorf("connect Helm with the cluster: %w", err)
	}
	c.configuration.SetHookOutputFunc(func(_, _, _ string) io.Writer { return c.logs })
	return c, nil
}

// Install installs the chart and waits until what it made is ready. What somebody else installed under the same names becomes
// the release's.
func (c *Cluster) Install(ctx context.Context, loaded *chartv2.Chart, values map[string]any) error {
	install := action.NewInstall(c.configuration)
	install.ReleaseName, install.Namespace, install.Timeout = Release, c.namespace, c.within
	install.WaitStrategy, install.TakeOwnership, install.ForceConflicts = kube.StatusWatcherStrategy, true, true
	if _, err := install.RunWithContext(ctx, loaded, values); err != nil {
		return fmt.Errorf("install the chart: %w", err)
	}
	return nil
}

// Upgrade changes the release to these values and waits until what it made is ready. Who installed it before owns the fields too.
func (c *Cluster) Upgrade(ctx context.Context, loaded *chartv2.Chart, values map[string]any) error {
	upgrade := action.NewUpgrade(c.configuration)
	upgrade.Namespace, upgrade.Timeout = c.namespace, c.within
	upgrade.WaitStrategy, upgrade.ForceConflicts = kube.StatusWatcherStrategy, true
	if _, err := upgrade.RunWithContext(ctx, Release, loaded, values); err != nil {
		return fmt.Errorf("upgrade the release: %w", err)
	}
	return nil
}

// Rollback makes the release again what it was as the revision.
func (c *Cluster) Rollback(revision int) error {
	rollback := action.NewRollback(c.configuration)
	rollback.Version, rollback.Timeout = revision, c.within
	rollback.WaitStrategy, rollback.ForceConflicts = kube.StatusWatcherStrategy, true
	if err := rollback.Run(Release); err != nil {
		return fmt.Errorf("roll the release back to revision %d: %w", revision, err)
	}
	return nil
}

// Uninstall removes the release, if there is one, and waits until what it made is gone. The error of a hook has its log.
func (c *Cluster) Uninstall(hooks bool) error {
	c.logs.Reset()
	uninstall := action.NewUninstall(c.configuration)
	uninstall.Timeout, uninstall.WaitStrategy = c.within, kube.StatusWatcherStrategy
	uninstall.IgnoreNotFound, uninstall.DisableHooks = true, !hooks
	if _, err := uninstall.Run(Release); err != nil {
		return fmt.Errorf("uninstall the release: %w: %s", err, c.logs)
	}
	return nil
}
