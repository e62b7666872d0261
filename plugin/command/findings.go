package command

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/clusterstate"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// The reasons of the Events that doctor looks for.
const eventNotInjected, eventUnreachable = "SidecarNotInjected", "InstanceUnreachable"

// finding is something that is wrong, and the page that helps.
type finding struct {
	Problem string `json:"problem"`
	Page    string `json:"page"`
}

// facts are what doctor judges.
type facts struct {
	now time.Time
	// deployments are those of the plugin, and replicas their pods; replicasKnown is set if all could be read.
	deployments   []appsv1.Deployment
	replicas      []corev1.Pod
	replicasKnown bool
	clusters      []examined
	// services, slices and events are those of the clusters' namespaces; routesKnown is set if all of the first two could
	// be read.
	services    []corev1.Service
	slices      []discoveryv1.EndpointSlice
	routesKnown bool
	events      []corev1.Event
	rules       []alertRules
	// ahead says by pod how far its clock is ahead of this machine's: the least and the most that agree with every
	// answer. The empty name is the API server.
	ahead map[string][2]time.Duration

	found []finding
}

// examined is a cluster with its explanation.
type examined struct {
	seen
	explained *explanation
}

func (c *examined) String() string { return c.Cluster.Namespace + "/" + c.Cluster.Name }

type alertRules struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              json.RawMessage `json:"spec"`
}

func (r alertRules) have(alert string) bool { return strings.Contains(string(r.Spec), `"`+alert+`"`) }

// clocksMayDiffer is how far the clocks of the plugin and of the API server may be apart, and sidecarsMayDiffer those
// of a sidecar, which corrects its own. recently is how old an Event may be if nothing else says whether it still
// holds.
const clocksMayDiffer, sidecarsMayDiffer, recently = time.Second, 30*time.Second + 1, 10 * time.Minute

// offlineAlert is CloudNativePG's alert that fires while a cluster sleeps; Alertmanager inhibits it while asleepAlert
// fires.
const offlineAlert, asleepAlert = "CNPGClusterOffline", "ScaleToZeroAsleep"

func (f *facts) find(page, format string, arguments ...any) {
	f.found = append(f.found, finding{fmt.Sprintf(format, arguments...), "docs/" + page})
}

func judge(f facts) []finding {
	f.found = []finding{}
	switch {
	case !f.replicasKnown:
	case len(f.deployments) == 0:
		f.find("guides/install.md", "No Deployment of the plugin exists")
	case !slices.ContainsFunc(f.replicas, clusterstate.Ready):
		f.find("explanation/high-availability.md#while-the-plugin-is-entirely-down", "No replica of the plugin is ready")
	}
	f.judgeClocks()
	for i := range f.clusters {
		c := &f.clusters[i]
		for _, problem := range c.explained.Problems {
			f.find("guides/troubleshooting.md#invalid_annotation", "An annotation of the Cluster %s is invalid: %s", c, problem)
		}
		if plan.BlockedByPlugin(c.Cluster) {
			f.find("runbooks/ScaleToZeroNotReconciled.md", "The operator does not reconcile the Cluster %s: %s", c, c.Cluster.Status.PhaseReason)
		}
		f.judgeSidecars(c)
		f.judgeServices(c)
		if e := f.newest(c, eventUnreachable); f.now.Sub(e.LastTimestamp.Time) < recently {
			f.find("guides/troubleshooting.md#gateway_unavailable", "The gateway has not reached an instance of the Cluster %s: %s",
				c, e.Message)
		}
	}
	for _, r := range f.rules {
		if r.have(offlineAlert) && !slices.ContainsFunc(f.rules, func(r alertRules) bool { return r.have(asleepAlert) }) {
			f.find("guides/monitoring.md#other-peoples-alerts",
				"The alert %s of the PrometheusRule %s/%s fires for a cluster that sleeps, "+
					"and no PrometheusRule has the alert %s that inhibits it", offlineAlert, r.Namespace, r.Name, asleepAlert)
		}
	}
	return f.found
}

// judgeClocks names the pods whose clocks differ from the API server's. A clock that was set meanwhile, so that no
// value agrees with every answer, is not compared.
func (f *facts) judgeClocks() {
	here, known := f.ahead[""]
	for _, pod := range slices.Sorted(maps.Keys(f.ahead)) {
		there, mayDiffer := f.ahead[pod], sidecarsMayDiffer
		if slices.ContainsFunc(f.replicas, func(p corev1.Pod) bool { return p.Namespace+"/"+p.Name == pod }) {
			mayDiffer = clocksMayDiffer
		}
		apart := max(there[0]-here[1], here[0]-there[1])
		if known && here[0] <= here[1] && there[0] <= there[1] && apart >= mayDiffer {
			f.find("guides/troubleshooting.md#gateway_unavailable",
				"The clocks of the API server and of the pod %s differ by %s or more", pod, apart.Truncate(time.Second))
		}
	}
}

// judgeSidecars names the instances without a sidecar, with another one than new pods get, and with a silent one.
func (f *facts) judgeSidecars(c *examined) {
	image, why := f.setting("SIDECAR_IMAGE"), f.newest(c, eventNotInjected).Message
	if why != "" {
		why = ": " + why
	}
	for i := range c.Pods {
		pod, sidecar := c.Cluster.Namespace+"/"+c.Pods[i].Name, named(&c.Pods[i].Spec, container)
		if sidecar == nil {
			f.find("guides/troubleshooting.md#no-reason-is-given", "The pod %s has no sidecar%s", pod, why)
			continue
		}
		if image != "" && sidecar.Image != image {
			f.find("guides/upgrade.md#replace-sidecars-at-once", "The sidecar of the pod %s has the image %s, and new pods get %s",
				pod, sidecar.Image, image)
		}
		problem := c.explained.problem(c.Pods[i].Name)
		if problem != "" && problem != mayNotAsk && clusterstate.Ready(c.Pods[i]) && c.asks(c.explained.State) {
			f.find("reference/command-line.md#rights", "The sidecar of the pod %s does not answer: %s", pod, problem)
		}
	}
}

// judgeServices names the Services that cannot be routed to the gateway and, while the cluster sleeps, those that are
// not.
func (f *facts) judgeServices(c *examined) {
	if those := c.Cluster.Annotations[contract.AnnotationUnroutableServices]; those != "" {
		f.find("reference/networks.md#services-that-cannot-lead-to-the-gateway",
			"The gateway cannot serve Services of the Cluster %s: %s", c, those)
	}
	sleeps := c.explained.State == clusterstate.Asleep || c.explained.State == clusterstate.Dozing
	if !sleeps || c.explained.Obstacle != "" || !f.routesKnown {
		return
	}
	for i := range f.services {
		s := &f.services[i]
		if s.Namespace != c.Cluster.Namespace || s.Spec.Selector[endpointslice.LabelCluster] != c.Cluster.Name {
			continue
		}
		verdict, _ := endpointslice.Route(s, c.Cluster, c.Pods, nil)
		if verdict == endpointslice.Routable && !slices.ContainsFunc(f.slices, func(e discoveryv1.EndpointSlice) bool {
			return endpointslice.ServiceOf(&e) == s.UID
		}) {
			f.find("runbooks/ScaleToZeroUnrouted.md",
				"The Cluster %s sleeps, and no EndpointSlice leads its Service %s to the gateway", c, s.Name)
		}
	}
}

// newest returns the newest Event about the cluster with that reason, or an empty one.
func (f *facts) newest(c *examined, reason string) (newest corev1.Event) {
	for i := range f.events {
		e := &f.events[i]
		if e.Reason == reason && e.InvolvedObject.Name == c.Cluster.Name &&
			e.InvolvedObject.Namespace == c.Cluster.Namespace &&
			(newest.Reason == "" || newest.LastTimestamp.Before(&e.LastTimestamp)) {
			newest = *e
		}
	}
	return newest
}

// setting returns the value of a setting of the plugin that its first Deployment has, or "".
func (f *facts) setting(variable string) string {
	if len(f.deployments) == 0 {
		return ""
	}
	for _, e := range named(&f.deployments[0].Spec.Template.Spec, pluginContainer).Env {
		if e.Name == variable {
			return e.Value
		}
	}
	return ""
}
