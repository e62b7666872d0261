package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
)

// ErrDown says that a part of a cluster, or all of it, does not run.
var ErrDown = errors.New("not running")

// Down ends every process and removes every mount, control group and network of the cluster, also of one that came up only
// in part or crashed. The logs stay. Once begun it goes through to the end: a cancelled context does not stop it.
func (l Layout) Down(ctx context.Context, progress *Progress) error {
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	lock, err := take(l.lockFile())
	if err != nil {
		return err
	}
	defer lock.release()
	said, err := lock.read()
	if err != nil {
		return err
	}
	if said.Run != "" && said.Run != l.Run {
		return fmt.Errorf("the cluster that is up on this machine has another run folder: SCALE_TO_ZERO_RUN=%s ends it", said.Run)
	}
	if _, err := os.Stat(l.Run); errors.Is(err, fs.ErrNotExist) {
		progress.Say("no cluster is running")
		return lock.write("")
	}
	return l.remove(context.WithoutCancel(ctx), progress, lock)
}

// remove is Down with the lock held.
func (l Layout) remove(ctx context.Context, progress *Progress, lock claim) error {
	progress.Say("take the cluster down")
	err := errors.Join(l.killAll(), l.unmount(), l.removeLogLinks())
	for _, node := range l.nodes() {
		err = errors.Join(err, removeSockets(node.Run), node.removeCgroups(ctx), node.removeRecords())
	}
	if err == nil { // what is known of the cluster is kept as long as something of it is left
		err = errors.Join(l.second().deleteNetwork(ctx), os.RemoveAll(l.Run), lock.write(""), l.deleteNetwork(ctx))
	}
	if err != nil {
		return fmt.Errorf("take the cluster down: %w", err)
	}
	progress.Say("down; the logs are in %s", l.Logs())
	return nil
}

// exists is ErrDown where there is no cluster at all.
func (l Layout) exists() error {
	if _, err := os.Stat(l.Run); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the cluster is %w", ErrDown)
	}
	return nil
}

// Status tells which components run; the error is ErrDown if one does not.
func (l Layout) Status() (string, error) {
	if err := l.exists(); err != nil {
		return "", err
	}
	components := l.components()
	var report strings.Builder
	var down []string
	for _, name := range slices.Sorted(maps.Keys(components)) {
		state := fmt.Sprintf("up, process %d", components[name])
		if components[name] == 0 {
			state, down = "down", append(down, name)
		}
		fmt.Fprintf(&report, "%-24s %s\n", name, state)
	}
	image, _ := l.OperandImage()
	fmt.Fprintf(&report, "logs: %s\nexport POSTGRES_IMAGE=%s\n", l.Logs(), image)
	if len(down) > 0 || len(components) == 0 {
		return report.String(), fmt.Errorf("the cluster is %w: %s", ErrDown, strings.Join(down, ", "))
	}
	return report.String(), nil
}

// OperandImage is the name of the PostgreSQL image that the running cluster has.
func (l Layout) OperandImage() (string, error) {
	if err := l.exists(); err != nil {
		return "", err
	}
	image, err := os.ReadFile(l.run("postgres-image"))
	if err != nil {
		return "", fmt.Errorf("read the name of the PostgreSQL image: %w", err)
	}
	return string(image), nil
}
