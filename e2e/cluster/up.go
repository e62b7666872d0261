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
	// Families are those of its addresses.
	Families Families
	// Versions are those of what it is made of.
	Versions Versions
	// Nodes is how many it has: one or two.
	Nodes int
}

// Up makes the cluster and returns when the operator answers; if it fails, it removes what it made. It builds outside the network of the
// cluster, which has no way out, and then moves this process into it, as Enter does.
func (l Layout) Up(ctx context.Context, progress *Progress, options Options) (err error) {
	if options.ProxyMode != "iptables" && options.ProxyMode != "nftables" {
		return fmt.Errorf("proxy mode %q: it must be iptables or nftables", options.ProxyMode)
	}
	if err := errors.Join(options.Families.Check(), options.Versions.Check(), options.checkNodes()); err != nil {
		return err
	}
	if err := l.checkMachine(ctx, options.Families); err != nil {
		return err
	}
	built, err := l.prepare(ctx, progress, options.Versions)
	if err != nil {
		return err
	}
	if err := l.removeEnded(ctx, progress); err != nil {
		return err
	}
	if err := l.makeNetwork(ctx); err != nil {
		return err
	}
	if err := l.Enter(); err != nil {
		return err
	}
	lock, err := take(l.lockFile())
	if err != nil {
		return err
	}
	defer lock.release()
	if err := l.checkDown(lock); err != nil {
		return err
	}
	if err := lock.write(l.Run); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			progress.Say("it failed: take down what was made")
			err = errors.Join(err, l.remove(context.WithoutCancel(ctx), progress, lock))
		}
	}()
	if err := l.bringUp(ctx, progress, built, options); err != nil {
		return err
	}
	progress.Say("up: `exec` runs commands on it; export POSTGRES_IMAGE=%s", built.postgresImage)
	return nil
}

// removeEnded removes what a cluster left that ended without Down, because the machine was restarted.
func (l Layout) removeEnded(ctx context.Context, progress *Progress) error {
	if l.exists() != nil || len(l.processes()) != 0 {
		return nil
	}
	progress.Say("an earlier cluster ended without `down`")
	return l.Down(ctx, progress)
}

// checkDown is ErrRunning if there is a cluster.
func (l Layout) checkDown(lock claim) error {
	said, err := lock.read()
	switch {
	case err != nil:
		return err
	case said.Run != "" && said.Run != l.Run:
		return fmt.Errorf("%w (its run folder is another: SCALE_TO_ZERO_RUN=%s)", ErrRunning, said.Run)
	case l.exists() == nil:
		return ErrRunning
	}
	return nil
}

// begin makes the folders and files of the run and what of the machine the cluster needs.
func (l Layout) begin(ctx context.Context, built artefacts, options Options) error {
	if err := os.RemoveAll(l.Logs()); err != nil {
		return fmt.Errorf("remove the logs of the last cluster: %w", err)
	}
	err := errors.Join(
		os.MkdirAll(filepath.Join(l.Logs(), "pods"), 0o755), os.MkdirAll(l.run("volumes"), 0o755), os.MkdirAll(l.run("bin"), 0o755),
		os.Symlink(built.kubernetes, l.kubernetes()), writeFile(l.run("postgres-image"), built.postgresImage),
		l.writePKI(), l.configure(options), l.cgroups(), l.network(ctx, options.Families))
	if err != nil || options.Nodes != 2 {
		return err
	}
	return l.beginSecond(ctx, options)
}

// bringUp starts the components in their order. The images are imported while the API server starts.
func (l Layout) bringUp(ctx context.Context, progress *Progress, built artefacts, options Options) error {
	if err := l.begin(ctx, built, options); err != nil {
		return err
	}
	progress.Say("start Kubernetes %s; the logs are in %s", options.Versions.Kubernetes, l.Logs())
	for _, c := range l.independent(options.Families) {
		if err := l.start(c); err != nil {
			return err
		}
	}
	if options.Nodes == 2 {
		if err := l.startSecond(); err != nil {
			return err
		}
	}
	if err := l.Load(ctx, built.archives...); err != nil {
		return err
	}
	progress.Say("containerd has the images")
	ready := func(ctx context.Context) error { _, err := l.Kubectl(ctx, "", "get", "--raw", "/readyz"); return err }
	if err := l.until(ctx, "the API server", time.Minute, ready); err != nil {
		return err
	}
	progress.Say("the API server is ready")
	for _, c := range l.controlled(built.node, options.Families) {
		if err := l.start(c); err != nil {
			return err
		}
	}
	if options.Nodes == 2 {
		if err := l.joinSecond(); err != nil {
			return err
		}
	}
	return l.populate(ctx, progress, built, options)
}

// populate installs what every cluster has: storage, DNS and the operator.
func (l Layout) populate(ctx context.Context, progress *Progress, built artefacts, options Options) error {
	apply := func(ctx context.Context) error {
		_, err := l.Kubectl(ctx, "", "apply", "--server-side", "-f", l.run("base.yaml"))
		return err
	}
	if err := l.until(ctx, "the first objects", 30*time.Second, apply); err != nil {
		return err
	}
	if _, err := l.Kubectl(ctx, built.manifest, "apply", "--server-side", "-f", "-"); err != nil {
		return fmt.Errorf("install the operator: %w", err)
	}
	if options.Nodes == 2 {
		if err := l.keepOperator(ctx); err != nil {
			return err
		}
	}
	for _, name := range []string{nodeName, SecondNode}[:options.Nodes] {
		ready := func(ctx context.Context) error {
			_, err := l.Kubectl(ctx, "", "wait", "--for=condition=Ready", "node/"+name, "--timeout=5s")
			return err
		}
		if err := l.until(ctx, name, time.Minute, ready); err != nil {
			return err
		}
		progress.Say("%s is ready", name)
	}
	if err := l.until(ctx, "the operator's webhooks", 2*time.Minute, l.webhook); err != nil {
		return err
	}
	progress.Say("the operator %s answers", options.Versions.Operator)
	return nil
}

// probe is a Cluster that only the operator's webhook can accept.
const probe = `{"apiVersion":"postgresql.cnpg.io/v1","kind":"Cluster","metadata":{"name":"probe","namespace":"default"},` +
	`"spec":{"instances":1,"imageName":"localhost/postgresql:17.0","storage":{"size":"1Gi"}}}`

// webhook asks the operator's webhook once.
func (l Layout) webhook(ctx context.Context) error {
	_, err := l.Kubectl(ctx, probe, "create", "--dry-run=server", "-f", "-")
	return err
}

// until is the function of that name, which gives up at once when a component is gone.
func (l Layout) until(ctx context.Context, what string, within time.Duration, try func(context.Context) error) error {
	return until(ctx, what, within, func(ctx context.Context) error {
		err := try(ctx)
		if err == nil {
			return nil
		}
		return errors.Join(err, l.ended())
	})
}

// Load imports archives of images into containerd of every node.
func (l Layout) Load(ctx context.Context, archives ...string) error {
	if err := l.exists(); err != nil {
		return err
	}
	for _, node := range l.nodes() {
		answers := func(ctx context.Context) error { _, err := node.ctr(ctx, "version"); return err }
		if err := l.until(ctx, "containerd", 20*time.Second, answers); err != nil {
			return err
		}
		for _, archive := range archives {
			absolute, err := filepath.Abs(archive)
			if err != nil {
				return fmt.Errorf("find %s: %w", archive, err)
			}
			if _, err := node.ctr(ctx, "images", "import", "--digests=false", absolute); err != nil {
				return err
			}
		}
	}
	return nil
}

// Tag gives an image that containerd of every node has another name.
func (l Layout) Tag(ctx context.Context, name, other string) error {
	if err := l.exists(); err != nil {
		return err
	}
	for _, node := range l.nodes() {
		if _, err := node.ctr(ctx, "images", "tag", "--force", name, other); err != nil {
			return err
		}
	}
	return nil
}

// Kubectl runs kubectl as the administrator.
func (l Layout) Kubectl(ctx context.Context, input string, arguments ...string) (string, error) {
	return doWith(ctx, input, l.kubernetes(), append([]string{"kubectl", "--kubeconfig=" + l.Kubeconfig()}, arguments...)...)
}

func (l Layout) ctr(ctx context.Context, arguments ...string) (string, error) {
	return do(ctx, "ctr", append([]string{"-a", l.socket(), "-n", "k8s.io"}, arguments...)...)
}
