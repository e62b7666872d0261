package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// readWithin bounds one request of doctor, and mostBytes what the archive has of a log or of metrics.
const readWithin, mostBytes = 15 * time.Second, 1 << 20

// someEvents bounds the Events of a namespace.
const someEvents = "?limit=500"

// collector reads what doctor judges, and what the archive has.
type collector struct {
	*access
	// archives is set if it also reads what only the archive has.
	archives bool
	versions map[string]any
	// roles are the names of the managed ones, and unread is what could not be read, and why.
	roles, unread []string
	files         []file
}

func (c *collector) add(name string, content []byte) {
	if c.archives && len(content) != 0 {
		c.files = append(c.files, file{name, content})
	}
}

// addText adds a text without what may be a secret. Its lines may be JSON objects, after the time in a log.
func (c *collector) addText(name, text string) {
	var cleaned strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		at := max(strings.Index(line, "{"), 0)
		if !json.Valid([]byte(line[at:])) {
			at = 0
		}
		cleaned.WriteString(line[:at] + cleanText(line[at:]) + "\n")
	}
	c.add(name, []byte(cleaned.String()))
}

// addJSON adds an object without what may be a secret.
func (c *collector) addJSON(name string, object any) {
	var decoded any
	body, err := json.Marshal(object)
	err = cmp.Or(err, json.Unmarshal(body, &decoded))
	if err == nil {
		body, err = encode(clean(decoded), "  ")
	}
	if err != nil {
		c.missed("encode "+name, err)
		return
	}
	c.add(name, body)
}

// missed notes what could not be read.
func (c *collector) missed(what string, err error) {
	c.unread = append(c.unread, "Cannot "+what+": "+err.Error())
}

// read reads a path of the API server. What does not exist is not noted: a pod may go meanwhile, and the Prometheus
// operator need not be there.
func (c *collector) read(ctx context.Context, what, uri string) ([]byte, bool) {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	answered := c.server.Get().RequestURI(uri).MaxRetries(0).Do(ctx)
	body, _ := answered.Raw() // its error lacks what the API server says
	err := answered.Error()
	if err != nil && !apierrors.IsNotFound(err) {
		c.missed("read "+what, err)
	}
	return body, err == nil
}

// text reads at most mostBytes of a text.
func (c *collector) text(ctx context.Context, what, uri string) string {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	body, err := c.server.Get().RequestURI(uri).MaxRetries(0).Stream(ctx)
	var text []byte
	if err == nil {
		defer func() { _ = body.Close() }()
		text, err = io.ReadAll(io.LimitReader(body, mostBytes))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		c.missed("read "+what, err)
	}
	return string(text)
}

// objects reads an object or a list, and adds it to the archive unless there is no name for it.
func (c *collector) objects(ctx context.Context, what, uri, name string, into any) bool {
	body, ok := c.read(ctx, what, uri)
	if !ok {
		return false
	}
	if name != "" {
		c.addJSON(name, json.RawMessage(body))
	}
	err := json.Unmarshal(body, into)
	if err != nil {
		c.missed("read "+what, err)
	}
	return err == nil
}

func selecting(labels string) string { return "?labelSelector=" + url.QueryEscape(labels) }

// collect reads all that doctor judges.
func (c *collector) collect(ctx context.Context, which choice, clusters []cnpgv1.Cluster, now time.Time) facts {
	f := facts{now: now, replicasKnown: true, routesKnown: true}
	kubernetes := map[string]any{}
	c.objects(ctx, "the version of Kubernetes", "/version", "", &kubernetes)
	c.versions["kubernetes"] = kubernetes["gitVersion"]
	for _, labels := range []string{"app=scale-to-zero", "app.kubernetes.io/name=cloudnative-pg"} {
		var list appsv1.DeploymentList
		_, name, _ := strings.Cut(labels, "=")
		f.replicasKnown = c.objects(ctx, "the Deployments of "+name, "/apis/apps/v1/deployments"+selecting(labels),
			"deployments/"+name+".json", &list) && f.replicasKnown
		for i := range list.Items {
			c.collectDeployment(ctx, &f, &list.Items[i])
		}
	}
	var rules struct{ Items []alertRules }
	c.objects(ctx, "the PrometheusRules", "/apis/monitoring.coreos.com/v1/prometheusrules", "", &rules)
	f.rules = rules.Items
	pods, problem := c.pods(ctx, which.namespace, which.name)
	if problem != nil {
		c.missed("read the instances", problem)
	}
	seen := map[string]bool{}
	for i := range clusters {
		own := slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool {
			return p.Namespace != clusters[i].Namespace || p.Labels[endpointslice.LabelCluster] != clusters[i].Name
		})
		f.clusters = append(f.clusters, c.examine(ctx, &clusters[i], own, problem, now))
		if namespace := clusters[i].Namespace; !seen[namespace] {
			c.collectNamespace(ctx, &f, namespace)
			seen[namespace] = true
		}
	}
	f.apart = c.clocks.apart()
	return f
}

// collectDeployment reads about a Deployment of the plugin or of the operator.
func (c *collector) collectDeployment(ctx context.Context, f *facts, d *appsv1.Deployment) {
	for _, of := range slices.Concat(d.Spec.Template.Spec.InitContainers, d.Spec.Template.Spec.Containers) {
		c.versions[d.Namespace+"/"+d.Name+"/"+of.Name] = of.Image
	}
	if pluginContainer(&d.Spec.Template.Spec) == nil {
		return
	}
	f.deployments = append(f.deployments, *d)
	core, directory := "/api/v1/namespaces/"+d.Namespace, "plugin/"
	var pods corev1.PodList
	selected := selecting(metav1.FormatLabelSelector(d.Spec.Selector))
	f.replicasKnown = c.objects(ctx, "the pods of the plugin", core+"/pods"+selected,
		directory+"pods.json", &pods) && f.replicasKnown
	f.replicas = append(f.replicas, pods.Items...)
	for i := range pods.Items {
		if of := pluginContainer(&pods.Items[i].Spec); of != nil { // none: a pod of an earlier revision
			c.metrics(ctx, &pods.Items[i], of, directory)
			c.log(ctx, &pods.Items[i], of, directory)
		}
	}
	if c.archives {
		c.objects(ctx, "the ports of the gateway", core+"/configmaps"+selecting("scale-to-zero.cnpg-i.io/ports=true"),
			directory+"ports.json", &corev1.ConfigMapList{})
		c.objects(ctx, "the Events of the plugin", core+"/events"+someEvents, directory+"events.json", &corev1.EventList{})
	}
}

// collectNamespace reads about a namespace that has a cluster.
func (c *collector) collectNamespace(ctx context.Context, f *facts, namespace string) {
	in := "namespaces/" + namespace
	core, directory, of := "/api/v1/"+in, in+"/", " of the namespace "+namespace
	var events corev1.EventList
	var ranges corev1.LimitRangeList
	var services corev1.ServiceList
	var routes discoveryv1.EndpointSliceList
	c.objects(ctx, "the Events"+of, core+"/events"+someEvents, directory+"events.json", &events)
	c.objects(ctx, "the LimitRanges"+of, core+"/limitranges", directory+"limitranges.json", &ranges)
	known := c.objects(ctx, "the Services"+of, core+"/services", "", &services)
	also := c.objects(ctx, "the EndpointSlices"+of, "/apis/discovery.k8s.io/v1/"+in+"/endpointslices"+
		selecting(discoveryv1.LabelManagedBy+"="+endpointslice.ManagedBy), directory+"endpointslices.json", &routes)
	f.routesKnown = f.routesKnown && known && also
	f.events, f.ranges = append(f.events, events.Items...), append(f.ranges, ranges.Items...)
	f.services, f.slices = append(f.services, services.Items...), append(f.slices, routes.Items...)
}

// examine explains a cluster, and adds it and what its sidecars say to the archive.
func (c *collector) examine(
	ctx context.Context, cluster *cnpgv1.Cluster, pods []corev1.Pod, problem error, now time.Time,
) examined {
	s := see(cluster, pods, problem == nil, now)
	e := examined{s, c.explained(ctx, s, problem, now)}
	for _, t := range e.explained.Instances {
		if t.Problem == mayNotAsk {
			c.missed("ask the sidecar of "+cluster.Namespace+"/"+t.Pod, errors.New(mayNotAsk))
		}
	}
	if cluster.Spec.Managed != nil {
		for i := range cluster.Spec.Managed.Roles {
			c.roles = append(c.roles, cluster.Spec.Managed.Roles[i].Name)
		}
	}
	directory := "namespaces/" + cluster.Namespace + "/" + cluster.Name + "/"
	c.addJSON(directory+"cluster.json", cluster)
	c.addJSON(directory+"explain.json", e.explained)
	for i := range pods {
		c.addJSON(directory+pods[i].Name+".json", &pods[i])
		if of := sidecarOf(&pods[i]); of != nil && c.archives {
			c.versions[cluster.Namespace+"/"+pods[i].Name+"/"+container] = of.Image
			if !slices.ContainsFunc(e.explained.Instances, func(t told) bool { return t.Pod == pods[i].Name && t.Problem != "" }) {
				c.metrics(ctx, &pods[i], of, directory)
			}
			c.log(ctx, &pods[i], of, directory)
		}
	}
	return e
}

// metrics reads the metrics of a container, which also shows its clock.
func (c *collector) metrics(ctx context.Context, pod *corev1.Pod, of *corev1.Container, directory string) {
	for _, port := range of.Ports {
		if port.Name == "metrics" || port.ContainerPort == contract.SidecarPort {
			c.addText(directory+pod.Name+".metrics", c.text(ctx, "the metrics of "+pod.Namespace+"/"+pod.Name,
				fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%d/proxy/metrics", pod.Namespace, pod.Name, port.ContainerPort)))
		}
	}
}

// log reads the end of a container's log.
func (c *collector) log(ctx context.Context, pod *corev1.Pod, of *corev1.Container, directory string) {
	if c.archives {
		c.addText(directory+pod.Name+".log", c.text(ctx, "the log of "+pod.Namespace+"/"+pod.Name,
			fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/log?container=%s&tailLines=1000&limitBytes=%d&timestamps=true",
				pod.Namespace, pod.Name, of.Name, mostBytes)))
	}
}
