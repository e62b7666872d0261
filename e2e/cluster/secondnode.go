package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// SecondNode is the name of a cluster's second node: another containerd, kubelet and kube-proxy of the same machine, in a network
// namespace of their own that a veth pair joins to the first node's. The API server, the DNS server and the operator stay on the first.
const SecondNode = "node2"

// ErrOneNode says that there is no second node.
var ErrOneNode = errors.New("the cluster has one node: `cluster up -nodes 2` makes one of two")

const (
	secondLink   = "s2zsecond" // the pair's end at the first node's bridge
	secondUplink = "s2zfirst"  // and that of the second node
)

// secondIPv4 is what the second node has of IPv4; a cluster of two nodes has no other family.
var secondIPv4 = addressing{
	option: "-4", forwarding: ipv4.forwarding, node: "10.99.0.2", link: "10.99.0.2/24", host: "10.99.0.2/32",
	pods: "10.244.1.0/24", services: ipv4.services, anywhere: ipv4.anywhere,
}

// second returns the layout of the second node.
func (l Layout) second() Layout {
	l.Run, l.Network = l.run("second"), l.Network+"2"
	return l
}

// nodes are the layouts of the nodes that the cluster has.
func (l Layout) nodes() []Layout {
	if _, err := os.Stat(l.second().Run); err != nil {
		return []Layout{l}
	}
	return []Layout{l, l.second()}
}

// checkNodes says how many nodes there may be.
func (o Options) checkNodes() error {
	if o.Nodes != 1 && o.Nodes != 2 {
		return fmt.Errorf("%d nodes: it must be 1 or 2", o.Nodes)
	}
	if o.Nodes == 2 && o.Families != IPv4 {
		return errors.New("a cluster of two nodes has IPv4 only")
	}
	return nil
}

// beginSecond makes the folders, the configuration, the control groups and the network of the second node.
func (l Layout) beginSecond(ctx context.Context, options Options) error {
	second := l.second()
	err := errors.Join(os.MkdirAll(second.Run, 0o755), os.Symlink(l.run("pki"), second.run("pki")),
		second.configureSecond(l.Logs(), options.ProxyMode), second.cgroups(), second.makeNetwork(ctx))
	if err != nil {
		return fmt.Errorf("make the second node: %w", err)
	}
	there := []string{"-n", second.own()}
	for _, arguments := range [][]string{
		{"link", "add", secondLink, "type", "veth", "peer", "name", secondUplink, "netns", second.own()},
		{"link", "set", secondLink, "master", nodeBridge, "up"},
		{"route", "add", secondIPv4.pods, "via", secondIPv4.node},
		append(there, "addr", "add", secondIPv4.link, "dev", secondUplink),
		append(there, "link", "set", secondUplink, "up"),
		append(there, "route", "add", ipv4.pods, "via", ipv4.node),
		append(there, "route", "add", ipv4.services, "dev", secondUplink),
	} {
		if _, err := do(ctx, "ip", arguments...); err != nil {
			return err
		}
	}
	forward := second.there("forwarding", "sh", "-c", "echo 1 >"+secondIPv4.forwarding)
	_, err = do(ctx, forward.program, forward.arguments...)
	return err
}

// configureSecond is configure for the second node. It has its own log folder, because each kubelet removes logs of pods that it does not
// know.
func (l Layout) configureSecond(logs, proxyMode string) error {
	return l.configureNode(filepath.Join(logs, "second"), SecondNode, []addressing{secondIPv4}, proxyMode,
		"containerd.toml", "cni.conflist", "kubelet.yaml", "proxy.yaml")
}

// there returns a component that runs a program in the network namespace of the second node.
func (l Layout) there(name, program string, arguments ...string) component {
	return component{name + "-second", "nsenter", append([]string{"--net=" + namespaces + l.own(), program}, arguments...)}
}

// startSecond starts containerd of the second node, which only then can import images.
func (l Layout) startSecond() error {
	second := l.second()
	return l.start(second.there("containerd", "containerd", "-c", second.run("containerd.toml")))
}

// joinSecond starts what needs the API server.
func (l Layout) joinSecond() error {
	second := l.second()
	kubelet, proxy := l.kubelet(second, SecondNode, secondIPv4.node), l.proxy(second)
	return errors.Join(
		l.start(second.there(kubelet.name, kubelet.program, kubelet.arguments...)),
		l.start(second.there(proxy.name, proxy.program, proxy.arguments...)))
}

// keepOperator has the operator's pod on the first node, so that it survives the loss of the second one.
func (l Layout) keepOperator(ctx context.Context) error {
	_, err := l.Kubectl(ctx, "", "-n", "cnpg-system", "patch", "deployment", "cnpg-controller-manager", "--type=merge",
		"-p", `{"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/hostname":"`+nodeName+`"}}}}}`)
	return err
}

// CutSecondNode sets the link of the second node down, as if the node had lost its power. The function returned sets it up again.
func (l Layout) CutSecondNode(ctx context.Context) (restore func() error, err error) {
	if err := l.hasSecond(); err != nil {
		return nil, err
	}
	set := func(ctx context.Context, state string) error {
		_, err := do(ctx, "ip", "link", "set", secondLink, state)
		return err
	}
	return func() error { return set(context.WithoutCancel(ctx), "up") }, set(ctx, "down")
}

// HoldSecondProxy stops kube-proxy of the second node, which then learns of no change of a Service. The function returned lets it run
// again.
func (l Layout) HoldSecondProxy() (resume func() error, err error) {
	if err := l.hasSecond(); err != nil {
		return nil, err
	}
	proxy := l.components()["kube-proxy-second"]
	if proxy == 0 {
		return nil, fmt.Errorf("kube-proxy of the second node is %w", ErrDown)
	}
	if err := syscall.Kill(proxy, syscall.SIGSTOP); err != nil {
		return nil, fmt.Errorf("stop kube-proxy: %w", err)
	}
	return func() error {
		if err := syscall.Kill(proxy, syscall.SIGCONT); err != nil {
			return fmt.Errorf("let kube-proxy run again: %w", err)
		}
		return nil
	}, nil
}

// hasSecond is an error unless the cluster of KUBECONFIG is this one and has a second node.
func (l Layout) hasSecond() error {
	if l.Another() {
		return ErrElsewhere
	}
	if len(l.nodes()) < 2 {
		return ErrOneNode
	}
	return nil
}
