package cluster_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cnpg-i/scale-to-zero/e2e/cluster"
)

// traces is what a cluster could leave on the machine.
type traces struct {
	Processes, Mounts, Links, ControlGroups, Tables, Chains, Files, Settings []string
}

// TestLifeOfACluster makes real clusters on this machine, as root, in both modes of kube-proxy and of both families of addresses and one, and ends one by Down, the
// other after all its components crashed: nothing may be left of either.
func TestLifeOfACluster(t *testing.T) {
	if os.Getenv("E2E_CLUSTER") == "" {
		t.Skip("E2E_CLUSTER=1 makes real clusters")
	}
	folder, err := os.MkdirTemp("/var/tmp", "life") // short enough for sockets, and on a disk
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	t.Setenv("SCALE_TO_ZERO_RUN", filepath.Join(folder, "run"))
	l, err := cluster.DefaultLayout("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		rule, mode string
		families   cluster.Families
		nodes      int
		crash      bool
	}{
		{"down leaves nothing", "iptables", cluster.DualStack, 1, false},
		{"down leaves nothing of a cluster whose two nodes whose components crashed", "nftables", cluster.IPv4, 2, true},
	} {
		if !t.Run(row.rule, func(t *testing.T) {
			before := look(t, folder)
			live(t, l, cluster.Options{ProxyMode: row.mode, Families: row.families, Versions: cluster.Usual(), Nodes: row.nodes}, row.crash)
			if diff := cmp.Diff(before, look(t, folder)); diff != "" {
				t.Errorf("what the cluster left or took (-before +after):\n%s", diff)
			}
			if _, err := l.Status(); !errors.Is(err, cluster.ErrDown) {
				t.Errorf("the status is %v, want ErrDown", err)
			}
		}) {
			return
		}
	}
}

// live is the life of one cluster.
func live(t *testing.T, l cluster.Layout, options cluster.Options, crash bool) {
	ctx, progress := t.Context(), cluster.NewProgress(t.Output())
	if err := l.Up(ctx, progress, options); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Down(ctx, progress); err != nil {
			t.Error(err)
		}
	}()
	if err := l.Up(ctx, progress, options); !errors.Is(err, cluster.ErrRunning) {
		t.Errorf("a second Up gives %v, want ErrRunning", err)
	}
	reuse := options
	reuse.Reuse = true
	if err := l.Up(ctx, progress, reuse); err != nil {
		t.Errorf("a running cluster cannot be reused: %v", err)
	}
	elsewhere := l
	elsewhere.Run += "-elsewhere"
	if err := elsewhere.Up(ctx, progress, reuse); !errors.Is(err, cluster.ErrRunning) {
		t.Errorf("an Up with another run folder gives %v, want ErrRunning", err)
	}
	if err := elsewhere.Down(ctx, progress); err == nil {
		t.Error("a Down with another run folder says that it ended the cluster")
	}
	if report, err := l.Status(); err != nil {
		t.Errorf("%v:\n%s", err, report)
	}
	pods, err := l.Kubectl(ctx, "", "get", "pods", "-n", "cnpg-system", "-o", "name")
	if err != nil || !strings.Contains(pods, "cnpg-controller-manager") {
		t.Errorf("the operator's pod is not there: %q, %v", pods, err)
	}
	if crash {
		for _, pid := range pids(t, l) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}
}

var process = regexp.MustCompile(`up, process (\d+)`)

func pids(t *testing.T, l cluster.Layout) []int {
	t.Helper()
	report, err := l.Status()
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, match := range process.FindAllStringSubmatch(report, -1) {
		found = append(found, number(t, match[1]))
	}
	return found
}

// look lists what is there now. The folder of the run and the programs in the machine's own namespaces name what is ours.
func look(t *testing.T, folder string) traces {
	t.Helper()
	var found traces
	for _, file := range glob(t, "/proc/[0-9]*/cmdline") {
		content, _ := os.ReadFile(file)
		if command := strings.ReplaceAll(string(content), "\x00", " "); strings.Contains(command, folder) {
			found.Processes = append(found.Processes, command)
		}
	}
	for _, line := range strings.Split(read(t, "/proc/self/mounts"), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 {
			found.Mounts = append(found.Mounts, fields[1])
		}
	}
	for _, link := range glob(t, "/sys/class/net/*") {
		found.Links = append(found.Links, filepath.Base(link))
	}
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			found.ControlGroups = append(found.ControlGroups, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	found.Tables = strings.Split(output(t, "nft", "list", "tables"), "\n")
	for _, save := range []string{"iptables-save", "ip6tables-save"} {
		for _, line := range strings.Split(output(t, save), "\n") {
			if strings.HasPrefix(line, ":") {
				found.Chains = append(found.Chains, strings.Fields(line)[0])
			}
		}
	}
	for _, pattern := range []string{
		"/run/cnpg*", "/run/netns/*", "/run/containerd/s/*", "/var/lib/cni/results/*", "/var/log/containers/*", "/opt/containerd/*/*",
		"/usr/libexec/kubernetes/*",
	} {
		found.Files = append(found.Files, glob(t, pattern)...)
	}
	slices.Sort(found.Mounts)
	slices.Sort(found.Tables)
	for _, setting := range glob(t, "/proc/sys/net/ipv[46]/conf/*/forwarding") { // with that of all, and of every interface
		found.Settings = append(found.Settings, setting+" "+read(t, setting))
	}
	for _, setting := range glob(t, "/proc/sys/net/ipv6/conf/*/accept_ra") {
		found.Settings = append(found.Settings, setting+" "+read(t, setting))
	}
	return found
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func output(t *testing.T, name string, arguments ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, arguments...).Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return string(out)
}

func number(t *testing.T, text string) int {
	t.Helper()
	value, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return value
}
