// Command node is what a cluster needs beside Kubernetes: a provisioner of volumes and a DNS server, both as processes of
// the node. It is a module of its own because CoreDNS needs its own set of dependencies.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "provisioner" {
		if err := provision(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "provisioner:", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "coredns" {
		os.Args = os.Args[1:]
		serveDNS()
		return
	}
	fmt.Fprintln(os.Stderr, "usage: node {provisioner|coredns} ...")
	os.Exit(2)
}
