package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// ErrRunning says that a cluster is already up.
var ErrRunning = errors.New("a cluster is already running: `status` shows it, `down` ends it")

// Options are the choices of Up.
type Options struct {
	// ProxyMode is kube-proxy's: iptables or nftables.
	ProxyMode string
}

// Up makes the cluster and returns when the operator answers. If it does not come about, what was made is taken down.
func (l Layout) Up(ctx context.Context, progress *Progress, options Options) (err error) {
	if options.ProxyMode != "iptables" && options.ProxyMode != "nftables" {
		return fmt.Errorf("proxy mode %q: allowed are iptables and nftables", options.ProxyMode)
	}
	if err := l.checkMachine(); err != nil {
		return err
	}
	if _, err := os.Stat(l.Run); err == nil {
		if l.alive() {
			return ErrRunning
		}
		progress.Say("remove what is left of a cluster that ended by itself")
		if err := l.Down(ctx, progress); err != nil {
			return err
		}
	}
	built, err := l.prepare(ctx, progress)
	if err != nil {
		return err
	}
	if err := os.Mkdir(l.Run, 0o755); err != nil {
		return fmt.Errorf("begin a run: %w", err)
	}
	defer func() {
		if err != nil {
			progress.Say("it failed: take down what was made; the logs are in %s", l.Logs())
			err = errors.Join(err, l.Down(context.WithoutCancel(ctx), progress))
		}
	}()
	if err := l.bringUp(ctx, progress, built, options); err != nil {
		return err
	}
	progress.Say("up: export KUBECONFIG=%s POSTGRES_IMAGE=%s", l.Kubeconfig(), built.postgresImage)
	return nil
}

func (l Layout) bringUp(ctx context.Context, progress *Progress, built artefacts, options Options) error {
	if err := os.RemoveAll(l.Logs()); err != nil {
		return fmt.Errorf("remove the logs of the last cluster: %w", err)
	}
	for _, directory := range []string{l.Logs(), l.run("volumes"), l.run("pod-logs"), l.run("bin")} {
		if err := os.MkdirAll(directory, 0o755); err != nil {
			return fmt.Errorf("make the folders of the run: %w", err)
		}
	}
	if err := os.Symlink(built.kubernetes, l.run("bin", "kubernetes")); err != nil {
		return fmt.Errorf("link the programs: %w", err)
	}
	if err := writeFile(l.run("postgres-image"), built.postgresImage); err != nil {
		return err
	}
	for _, step := range []func() error{
		l.writePKI, func() error { return l.configure(options.ProxyMode) }, cgroups, func() error { return l.network(ctx) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	if err := l.start("containerd", "containerd", "-c", l.run("containerd.toml")); err != nil {
		return err
	}
	for _, c := range []component{l.etcd(built.kubernetes), l.apiserver(built.kubernetes)} {
		if err := l.start(c.name, c.program, c.arguments...); err != nil {
			return err
		}
	}
	if err := l.Load(ctx, built.archives...); err != nil {
		return err
	}
	progress.Say("containerd has the images")
	ready := func(ctx context.Context) error { _, err := l.Kubectl(ctx, "", "get", "--raw", "/readyz"); return err }
	if err := until(ctx, "the API server", time.Minute, ready); err != nil {
		return err
	}
	progress.Say("the API server is ready")
	for _, c := range l.controlled(built.kubernetes, built.node) {
		if err := l.start(c.name, c.program, c.arguments...); err != nil {
			return err
		}
	}
	return l.populate(ctx, progress, built)
}

// populate installs what every cluster has: storage, DNS and the operator.
func (l Layout) populate(ctx context.Context, progress *Progress, built artefacts) error {
	apply := func(ctx context.Context) error {
		_, err := l.Kubectl(ctx, "", "apply", "--server-side", "-f", l.run("base.yaml"))
		return err
	}
	if err := until(ctx, "the first objects", 30*time.Second, apply); err != nil {
		return err
	}
	if _, err := l.Kubectl(ctx, built.manifest, "apply", "--server-side", "-f", "-"); err != nil {
		return fmt.Errorf("install the operator: %w", err)
	}
	node := func(ctx context.Context) error {
		_, err := l.Kubectl(ctx, "", "wait", "--for=condition=Ready", "node/"+nodeName, "--timeout=5s")
		return err
	}
	if err := until(ctx, "the node", time.Minute, node); err != nil {
		return err
	}
	progress.Say("the node is ready")
	webhook := func(ctx context.Context) error {
		_, err := l.Kubectl(ctx, probe, "create", "--dry-run=server", "-f", "-")
		return err
	}
	if err := until(ctx, "the operator's webhooks", 2*time.Minute, webhook); err != nil {
		return err
	}
	progress.Say("the operator answers")
	return nil
}

// probe is a Cluster that only the operator's webhook can accept.
const probe = `{"apiVersion":"postgresql.cnpg.io/v1","kind":"Cluster","metadata":{"name":"probe","namespace":"default"},` +
	`"spec":{"instances":1,"imageName":"localhost/postgresql:17.0","storage":{"size":"1Gi"}}}`

// Load imports archives of images into containerd.
func (l Layout) Load(ctx context.Context, archives ...string) error {
	answers := func(ctx context.Context) error { _, err := l.ctr(ctx, "version"); return err }
	if err := until(ctx, "containerd", 20*time.Second, answers); err != nil {
		return err
	}
	for _, archive := range archives {
		absolute, err := filepath.Abs(archive)
		if err != nil {
			return fmt.Errorf("find %s: %w", archive, err)
		}
		if _, err := l.ctr(ctx, "images", "import", "--digests=false", absolute); err != nil {
			return err
		}
	}
	return nil
}

// Tag gives an image that containerd has another name.
func (l Layout) Tag(ctx context.Context, name, other string) error {
	_, err := l.ctr(ctx, "images", "tag", "--force", name, other)
	return err
}

// Kubectl runs kubectl as the administrator.
func (l Layout) Kubectl(ctx context.Context, input string, arguments ...string) (string, error) {
	return doWith(ctx, input, l.run("bin", "kubernetes"), append([]string{"kubectl", "--kubeconfig=" + l.Kubeconfig()}, arguments...)...)
}

func (l Layout) ctr(ctx context.Context, arguments ...string) (string, error) {
	return do(ctx, "ctr", append([]string{"-a", l.socket(), "-n", "k8s.io"}, arguments...)...)
}
