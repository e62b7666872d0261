package command

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cnpg-i/scale-to-zero/plugin/clusterstate"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

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
	// services, slices, ranges and events are those of the clusters' namespaces; routesKnown is set if all of the first
	// two could be read.
	services    []corev1.Service
	slices      []discoveryv1.EndpointSlice
	routesKnown bool
	ranges      []corev1.LimitRange
	events      []corev1.Event
	rules       []alertRules
	// apart says by how much, at least, a pod's clock and the API server's differ.
	apart map[string]time.Duration

	found []finding
}

// examined is a cluster with its explanation.
type examined struct {
	seen
	explained *explanation
}

func (c *examined) String() string { return c.Cluster.Namespace + "/" + c.Cluster.Name }

// alertRules is a PrometheusRule.
type alertRules struct {
	Metadata struct{ Namespace, Name string } `json:"metadata"`
	Spec     json.RawMessage                  `json:"spec"`
}

func (r *alertRules) has(alert string) bool {
	return bytes.Contains(r.Spec, []byte(strconv.Quote(alert)))
}

func (f *facts) find(page, format string, arguments ...any) {
	f.found = append(f.found, finding{fmt.Sprintf(format, arguments...), "docs/" + page})
}

// judge returns what is wrong.
func judge(f facts) []finding {
	f.found = []finding{}
	f.judgePlugin()
	for i := range f.clusters {
		c := &f.clusters[i]
		for _, problem := range c.explained.Problems {
			f.find("troubleshooting.md#invalid_annotation", "An annotation of the Cluster %s is invalid: %s", c, problem)
		}
		f.judgeSidecars(c)
		f.judgeServices(c)
		f.judgeLimits(c)
		if e := f.newest(c, "InstanceUnreachable"); e != nil && f.now.Sub(e.LastTimestamp.Time) < recently {
			f.find("troubleshooting.md#gateway_unavailable", "The gateway has not reached an instance of the Cluster %s: %s",
				c, e.Message)
		}
	}
	f.judgeAlerts()
	return f.found
}

const (
	// clocksMayDiffer is how far the clocks of the plugin and of the API server may be apart, and sidecarsMayDiffer those of
	// a sidecar, which corrects its own.
	clocksMayDiffer, sidecarsMayDiffer = time.Second, 30 * time.Second
	// recently is how old an Event may be if nothing else says whether it still holds.
	recently = 10 * time.Minute
	// pages is CloudNativePG's alert that fires while a cluster sleeps; Alertmanager inhibits it while inhibits fires.
	pages, inhibits = "CNPGClusterOffline", "ScaleToZeroAsleep"
)

func (f *facts) judgePlugin() {
	switch {
	case !f.replicasKnown:
	case len(f.deployments) == 0:
		f.find("install.md", "No Deployment of the plugin exists")
	case !slices.ContainsFunc(f.replicas, clusterstate.Ready):
		f.find("high-availability.md#while-the-plugin-is-entirely-down", "No replica of the plugin is ready")
	}
	for _, pod := range sorted(f.apart) {
		ofPlugin := slices.ContainsFunc(f.replicas, func(p corev1.Pod) bool { return p.Namespace+"/"+p.Name == pod })
		if apart := f.apart[pod]; apart > sidecarsMayDiffer || ofPlugin && apart >= clocksMayDiffer {
			f.find("troubleshooting.md#gateway_unavailable",
				"The clocks of the API server and of the pod %s differ by %s or more", pod, apart.Truncate(time.Second))
		}
	}
}

// judgeSidecars names the instances without a sidecar, with another one than new pods get, and with a silent one.
func (f *facts) judgeSidecars(c *examined) {
	image := f.setting("SIDECAR_IMAGE", "")
	const missing = "troubleshooting.md#no-reason-is-given"
	for i := range c.Pods {
		pod, sidecar := c.Cluster.Namespace+"/"+c.Pods[i].Name, sidecarOf(&c.Pods[i])
		switch said := f.newest(c, "SidecarNotInjected"); {
		case sidecar == nil && said != nil:
			f.find(missing, "The pod %s has no sidecar: %s", pod, said.Message)
		case sidecar == nil:
			f.find(missing, "The pod %s has no sidecar", pod)
		case image != "" && sidecar.Image != image:
			f.find("upgrade.md#replace-sidecars-at-once", "The sidecar of the pod %s has the image %s, and new pods get %s",
				pod, sidecar.Image, image)
		}
	}
	for _, t := range c.explained.Instances {
		serves := slices.ContainsFunc(c.Pods, func(p corev1.Pod) bool {
			return p.Name == t.Pod && clusterstate.Ready(p) && sidecarOf(&p) != nil
		})
		if t.Problem != "" && t.Problem != mayNotAsk && serves && c.asks(c.explained.State) {
			f.find("command-line.md#rights", "The sidecar of the pod %s/%s does not answer: %s",
				c.Cluster.Namespace, t.Pod, t.Problem)
		}
	}
}

// judgeServices names those that cannot lead to the gateway, and while the cluster sleeps those that do not.
func (f *facts) judgeServices(c *examined) {
	if those := c.Cluster.Annotations[contract.AnnotationUnroutableServices]; those != "" {
		f.find("networks.md#services-that-cannot-lead-to-the-gateway",
			"The gateway cannot serve Services of the Cluster %s: %s", c, those)
	}
	state := c.explained.State
	if state != clusterstate.Asleep && state != clusterstate.Dozing || c.explained.Obstacle != "" || !f.routesKnown {
		return
	}
	for i := range f.services {
		service := &f.services[i]
		led := slices.ContainsFunc(f.slices, func(s discoveryv1.EndpointSlice) bool {
			return endpointslice.ServiceOf(&s) == service.UID
		})
		verdict, _ := endpointslice.Route(service, c.Cluster, c.Pods, nil)
		if service.Namespace == c.Cluster.Namespace && service.Spec.Selector[endpointslice.LabelCluster] == c.Cluster.Name &&
			verdict == endpointslice.Routable && !led {
			f.find("monitoring.md#scaletozerounrouted",
				"The Cluster %s sleeps, and no EndpointSlice leads its Service %s to the gateway", c, service.Name)
		}
	}
}

// sidecarSettings are what the plugin has a sidecar request, and its limits, with the defaults of plugin/config.
var sidecarSettings = []struct {
	name           corev1.ResourceName
	request, limit [2]string
}{
	{corev1.ResourceCPU, [2]string{"SIDECAR_CPU_REQUEST", "10m"}, [2]string{"SIDECAR_CPU_LIMIT", "100m"}},
	{corev1.ResourceMemory, [2]string{"SIDECAR_MEMORY_REQUEST", "32Mi"}, [2]string{"SIDECAR_MEMORY_LIMIT", "64Mi"}},
}

// judgeLimits names the LimitRanges that refuse the sidecar, or raise what it requests.
func (f *facts) judgeLimits(c *examined) {
	guaranteed := slices.ContainsFunc(c.Pods, func(p corev1.Pod) bool {
		return p.Status.QOSClass == corev1.PodQOSGuaranteed
	})
	for _, s := range sidecarSettings {
		limit, invalid := resource.ParseQuantity(f.setting(s.limit[0], s.limit[1]))
		request, alsoInvalid := resource.ParseQuantity(f.setting(s.request[0], s.request[1]))
		if invalid != nil || alsoInvalid != nil { // unknown, or the plugin does not start with such a value
			continue
		}
		if guaranteed {
			request = limit
		}
		for _, r := range f.ranges {
			for _, item := range r.Spec.Limits {
				if r.Namespace != c.Cluster.Namespace || item.Type != corev1.LimitTypeContainer {
					continue
				}
				most, isMost := item.Max[s.name]
				least, isLeast := item.Min[s.name]
				ratio, isRatio := item.MaxLimitRequestRatio[s.name]
				const page = "configuration.md#settings-of-the-plugin"
				switch ratioed := request.AsApproximateFloat64() * ratio.AsApproximateFloat64(); {
				case isMost && most.Cmp(limit) < 0:
					f.find(page,
						"The LimitRange %s refuses the sidecars of the Cluster %s: the maximum of %s is %s, and their limit %s",
						r.Name, c, s.name, &most, &limit)
				case isLeast && least.Cmp(request) > 0, isRatio && limit.AsApproximateFloat64() > ratioed:
					f.find(page, "The LimitRange %s raises what the sidecars of the Cluster %s request of %s above %s",
						r.Name, c, s.name, &request)
				}
			}
		}
	}
}

// judgeAlerts names the PrometheusRules that page for a sleeping cluster.
func (f *facts) judgeAlerts() {
	if slices.ContainsFunc(f.rules, func(r alertRules) bool { return r.has(inhibits) }) {
		return
	}
	for _, r := range f.rules {
		if r.has(pages) {
			f.find("monitoring.md#other-peoples-alerts",
				"The alert %s of the PrometheusRule %s/%s fires for a cluster that sleeps, "+
					"and no PrometheusRule has the alert %s that inhibits it", pages, r.Metadata.Namespace, r.Metadata.Name, inhibits)
		}
	}
}

// newest returns the newest Event about the cluster with that reason, or nil.
func (f *facts) newest(c *examined, reason string) *corev1.Event {
	var newest *corev1.Event
	for i := range f.events {
		e := &f.events[i]
		of := e.InvolvedObject
		if e.Reason == reason && of.Name == c.Cluster.Name && of.Namespace == c.Cluster.Namespace &&
			(newest == nil || newest.LastTimestamp.Before(&e.LastTimestamp)) {
			newest = e
		}
	}
	return newest
}

// setting returns the value of a setting of the plugin that its Deployment names, or the default; empty if the value is
// elsewhere, or no Deployment is known.
func (f *facts) setting(variable, otherwise string) string {
	elsewhere := len(f.deployments) == 0
	for i := range f.deployments {
		plugin := pluginContainer(&f.deployments[i].Spec.Template.Spec)
		at := slices.IndexFunc(plugin.Env, func(e corev1.EnvVar) bool { return e.Name == variable })
		switch {
		case at >= 0 && plugin.Env[at].ValueFrom == nil:
			return cmp.Or(plugin.Env[at].Value, otherwise)
		case at >= 0 || len(plugin.EnvFrom) != 0:
			elsewhere = true
		}
	}
	if elsewhere {
		return ""
	}
	return otherwise
}

// pluginContainer returns the plugin's container, which is an init container in the operator's pod, or nil.
func pluginContainer(pod *corev1.PodSpec) *corev1.Container {
	return named(pod, "cnpg-i-scale-to-zero")
}

func sidecarOf(pod *corev1.Pod) *corev1.Container { return named(&pod.Spec, container) }

// named returns the container of that name, or nil.
func named(pod *corev1.PodSpec, name string) *corev1.Container {
	all := slices.Concat(pod.InitContainers, pod.Containers)
	if at := slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == name }); at >= 0 {
		return &all[at]
	}
	return nil
}

func sorted[T any](of map[string]T) []string { return slices.Sorted(maps.Keys(of)) }
