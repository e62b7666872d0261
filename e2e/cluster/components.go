package cluster

import (
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

//go:embed files
var files embed.FS

// configure writes the configuration of every component.
func (l Layout) configure(options Options) error {
	return l.configureNode(l.Logs(), nodeName, options.Families.all(), options.ProxyMode,
		"containerd.toml", "cni.conflist", "kubelet.yaml", "proxy.yaml", "Corefile", "base.yaml", "audit-policy.yaml")
}

// configureNode writes files of a node with these addresses.
func (l Layout) configureNode(logs, node string, addresses []addressing, proxyMode string, names ...string) error {
	replace := strings.NewReplacer("@RUN@", l.Run, "@ADDRESS@", addresses[0].node, "@NODE@", node,
		"@PODS@", list(addresses, func(a addressing) string { return a.pods }),
		"@HOSTS@", list(addresses, func(a addressing) string { return `"` + a.host + `"` }),
		"@RANGES@", list(addresses, func(a addressing) string { return `[{"subnet":"` + a.pods + `"}]` }),
		"@ROUTES@", list(addresses, func(a addressing) string { return `{"dst":"` + a.anywhere + `"}` }),
		"@PODBRIDGE@", podBridge, "@DNS@", dnsService, "@CGROUP@", l.own(), "@PODNET@", l.own(), "@LOGS@", logs,
		"@MODE@", proxyMode, "@PROVISIONER@", provisioner)
	for _, name := range names {
		content, err := files.ReadFile("files/" + name)
		if err != nil {
			return fmt.Errorf("read the template %s: %w", name, err)
		}
		if name == "cni.conflist" { // CNI takes what is in a folder
			name = "cni/10-pods.conflist"
		}
		if err := writeFile(l.run(name), replace.Replace(string(content))); err != nil {
			return err
		}
	}
	return writeFile(l.run("resolv.conf"), "")
}

// component is a program of the cluster.
type component struct {
	name, program string
	arguments     []string
}

// independent are the components that need nothing but each other.
func (l Layout) independent(families Families) []component {
	return []component{{"containerd", "containerd", []string{"-c", l.run("containerd.toml")}}, l.etcd(), l.apiserver(families)}
}

// start runs a component in a session of its own, so that it outlives this program, and records its process.
func (l Layout) start(c component) error {
	log, err := os.OpenFile(filepath.Join(l.Logs(), c.name+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", c.name, err)
	}
	defer func() { _ = log.Close() }()
	command := exec.Command(c.program, c.arguments...) //nolint:noctx // it outlives this program and every deadline in it
	command.Stdout, command.Stderr, command.SysProcAttr = log, log, &syscall.SysProcAttr{Setsid: true}
	// Every test waits for the API server, which spends a fifth of its processor time on garbage collection with Go's own settings.
	command.Env = append(os.Environ(), "GOGC=400", "GOMEMLIMIT=1GiB")
	if err := command.Start(); err != nil {
		return fmt.Errorf("start %s: %w", c.name, err)
	}
	go func() { _ = command.Wait() }() // while this program lives its dead children must not look alive
	return writeFile(l.run("pids", c.name), strconv.Itoa(command.Process.Pid))
}

func (l Layout) etcd() component {
	return component{"etcd", l.kubernetes(), []string{
		"etcd", "--name", nodeName, "--data-dir", l.run("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
		"--listen-peer-urls", "http://127.0.0.1:2380", "--initial-advertise-peer-urls", "http://127.0.0.1:2380",
		"--initial-cluster", nodeName + "=http://127.0.0.1:2380",
	}}
}

func (l Layout) apiserver(families Families) component {
	pki := l.run("pki")
	return component{"kube-apiserver", l.kubernetes(), []string{
		"kube-apiserver", "--etcd-servers=http://127.0.0.1:2379",
		"--bind-address=" + nodeAddress, "--advertise-address=" + nodeAddress, "--secure-port=6443",
		"--service-cluster-ip-range=" + families.list(func(a addressing) string { return a.services }),
		"--tls-cert-file=" + pki + "/apiserver.crt", "--tls-private-key-file=" + pki + "/apiserver.key",
		"--client-ca-file=" + pki + "/ca.crt",
		"--kubelet-client-certificate=" + pki + "/apiserver-kubelet.crt", "--kubelet-client-key=" + pki + "/apiserver-kubelet.key",
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-key-file=" + pki + "/sa.key", "--service-account-signing-key-file=" + pki + "/sa.key",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--requestheader-client-ca-file=" + pki + "/front-ca.crt", "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pki + "/front-client.crt", "--proxy-client-key-file=" + pki + "/front-client.key",
		"--allow-privileged=true", "--enable-priority-and-fairness=false", "--profiling=false",
		"--audit-policy-file=" + l.run("audit-policy.yaml"), "--audit-log-path=" + l.auditLog(),
		"--audit-log-maxsize=4096", // MiB; the log of a whole run of the tests is read as one file, and is rotated at 100 by default
	}}
}

// controlled are the components that need the API server. Pods' addresses are CNI's to give, and not the controller manager's.
func (l Layout) controlled(node string, families Families) []component {
	pki, kubernetes := l.run("pki"), l.kubernetes()
	as := func(name string) []string {
		conf := pki + "/" + name + ".conf"
		return []string{
			"--kubeconfig=" + conf, "--authentication-kubeconfig=" + conf, "--authorization-kubeconfig=" + conf,
			"--bind-address=127.0.0.1", "--leader-elect=false",
		}
	}
	return []component{
		{"kube-controller-manager", kubernetes, append(append([]string{"kube-controller-manager"}, as("controller-manager")...),
			"--use-service-account-credentials=true", "--service-account-private-key-file="+pki+"/sa.key",
			"--root-ca-file="+pki+"/ca.crt", "--allocate-node-cidrs=false", "--flex-volume-plugin-dir="+l.run("volume-plugins"))},
		{"kube-scheduler", kubernetes, append([]string{"kube-scheduler"}, as("scheduler")...)},
		l.kubelet(l, nodeName, families.list(func(a addressing) string { return a.node })),
		l.proxy(l),
		{"provisioner", node, []string{
			"provisioner", "--kubeconfig=" + l.Kubeconfig(), "--directory=" + l.run("volumes"), "--name=" + provisioner,
		}},
		{"coredns", node, []string{"coredns", "-conf", l.run("Corefile")}},
	}
}

// kubelet is that of a node, which has a layout of its own.
func (l Layout) kubelet(node Layout, name, addresses string) component {
	return component{"kubelet", l.kubernetes(), []string{
		"kubelet", "--config=" + node.run("kubelet.yaml"), "--kubeconfig=" + l.run("pki", "kubelet-"+name+".conf"),
		"--root-dir=" + node.run("kubelet"), "--cert-dir=" + node.run("kubelet-pki"), "--hostname-override=" + name,
		"--node-ip=" + addresses,
	}}
}

func (l Layout) proxy(node Layout) component {
	return component{"kube-proxy", l.kubernetes(), []string{"kube-proxy", "--config=" + node.run("proxy.yaml")}}
}
