package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

// serveDNS runs CoreDNS with only the plugins that a cluster needs, in the order in which they must answer.
func serveDNS() {
	dnsserver.Directives = []string{"bind", "health", "ready", "errors", "log", "cache", "kubernetes", "template"}
	coremain.Run()
}
