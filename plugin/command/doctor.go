package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
)

// diagnosis is the output of doctor.
type diagnosis struct {
	Findings []finding `json:"findings"`
	// Unread is what the command cannot read, and why.
	Unread []string `json:"unread"`
	// Archive is the file that was written; absent without one.
	Archive string `json:"archive,omitempty"`
}

func (p *program) doctorCommand() *cobra.Command {
	which, lookOnly, redacts, path := choice{}, false, false, ""
	c := &cobra.Command{
		Use: "doctor [CLUSTER | -A]", Short: "Report problems, and write an archive for a bug report",
		Long: `Report problems of the plugin and of the clusters, each with the page that helps, and write an archive for
a bug report: versions, settings, Clusters, pods, Events, logs, metrics, what explain says, and the plugin's
EndpointSlices and ports. The command reads no Secret, and leaves out environment variables whose name is that of a
secret. With --redact it also replaces addresses and the names of users and databases; the same one always becomes the
same word.`,
		ValidArgsFunction: p.complete(choice{}),
		RunE: func(c *cobra.Command, arguments []string) error {
			now := time.Now()
			directory := "scale-to-zero-doctor-" + now.UTC().Format("20060102T150405Z")
			if !c.Flags().Changed("archive") {
				path = directory + ".tar.gz"
			}
			_, err := os.Lstat(path)
			switch {
			case len(arguments) > 1 || len(arguments) == 1 && which.everywhere:
				return usage("doctor takes one CLUSTER at most, and none with --all-namespaces")
			case lookOnly && (redacts || c.Flags().Changed("archive")):
				return usage("--no-archive cannot be combined with --archive or --redact")
			case path == "" || err == nil:
				return usage("--archive is %q; it must be the name of a file that does not exist", path)
			}
			a, err := p.connect()
			if err != nil {
				return err
			}
			which.name = strings.Join(arguments, "")
			clusters, problem, err := a.look(c.Context(), which, now)
			if err != nil {
				return err
			}
			collected := &collector{
				access: a, versions: map[string]string{"command": p.version},
				facts: facts{now: now, replicasKnown: true, routesKnown: true, ahead: map[string][2]time.Duration{}},
			}
			if !lookOnly {
				out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
				if err != nil { // before the findings, which would be lost
					return fmt.Errorf("create the archive: %w", err)
				}
				collected.archive = newArchive(out, directory, now, redacts)
				defer func() {
					if !collected.archive.complete {
						_ = out.Close() // it may be closed
						_ = os.Remove(path)
					}
				}()
			}
			if len(clusters) == 0 {
				collected.unread = append(collected.unread, strings.TrimSuffix(a.none(which), "."))
			}
			collected.collect(c.Context(), clusters, problem)
			if err := c.Context().Err(); err != nil {
				return fmt.Errorf("read the clusters: %w", err)
			}
			answer := diagnosis{Findings: judge(collected.facts), Unread: append([]string{}, collected.unread...)}
			for i := range answer.Findings {
				answer.Findings[i].Page = p.page(answer.Findings[i].Page)
			}
			var unwritten error
			if archive := collected.archive; archive != nil {
				archive.addText("findings.txt", answer.text())
				archive.addText("errors.txt", strings.Join(collected.unread, "\n"))
				archive.addJSON("versions.json", collected.versions)
				if unwritten = archive.close(); unwritten == nil {
					answer.Archive = path
				}
			}
			if err := cmp.Or(p.write(answer, answer.text()), unwritten); err != nil || len(answer.Findings) == 0 {
				return err
			}
			return failure{exitFound, "doctor has found something wrong"}
		},
	}
	c.Flags().BoolVarP(&which.everywhere, "all-namespaces", "A", false, describeEverywhere)
	c.Flags().StringVar(&path, "archive", "",
		"a file to write, which must not exist (default scale-to-zero-doctor-TIME.tar.gz)")
	c.Flags().BoolVar(&lookOnly, "no-archive", false, "write no archive")
	c.Flags().BoolVar(&redacts, "redact", false, "replace addresses and the names of users and databases in the archive")
	return c
}

// page returns where a page of the repository can be read, for the version of this program.
func (p *program) page(path string) string {
	ref := "main"
	if strings.HasPrefix(p.version, "v") {
		ref = p.version
	}
	return "https://github.com/cnpg-i/scale-to-zero/blob/" + ref + "/" + path
}

// text has the findings, one a line.
func (d diagnosis) text() string {
	var text strings.Builder
	for _, f := range d.Findings {
		fmt.Fprintf(&text, "%s (%s).\n", strings.TrimSuffix(cell(f.Problem), "."), f.Page)
	}
	if len(d.Findings) == 0 {
		text.WriteString("The command finds nothing wrong.\n")
	}
	for _, problem := range d.Unread {
		text.WriteString(cell(problem) + ".\n")
	}
	if d.Archive != "" {
		fmt.Fprintf(&text, "The archive is %s. Read it before you publish it.\n", d.Archive)
	}
	return text.String()
}

// readWithin bounds one request of doctor, mostBytes what the archive has of a log or of metrics, and collectAtOnce the
// clusters that are read concurrently. someEvents bounds the Events of a namespace.
const readWithin, mostBytes, collectAtOnce, someEvents = 15 * time.Second, 1 << 20, 8, "?limit=500"

// collector reads the facts, and adds what it reads to the archive.
type collector struct {
	*access
	archive *archive // nil: what only the archive has is not read

	mutex    sync.Mutex
	facts    facts
	versions map[string]string
	unread   []string // and why
}

func (c *collector) missed(what string, err error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.unread = append(c.unread, "Cannot "+what+": "+err.Error())
}

// read returns at most that many bytes from a path of the API server, which may be a proxy to a pod; nil without an
// answer. A 404 is not reported: a pod may be gone by now, and the Prometheus operator may not be installed.
func (c *collector) read(ctx context.Context, what, uri, pod string, most int64) []byte {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	request := &http.Request{Method: http.MethodGet, URL: c.server.Get().RequestURI(uri).URL(), Header: http.Header{}}
	sent := time.Now()
	answer, err := c.server.Client.Do(request.WithContext(ctx))
	if err != nil {
		c.missed("read "+what, err)
		return nil
	}
	defer func() { _ = answer.Body.Close() }()
	if pod == "" || answer.StatusCode == http.StatusOK { // an error behind the path of a pod may be the API server's own
		c.compare(pod, sent, answer.Header.Get("Date"))
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, most))
	if answer.StatusCode != http.StatusOK {
		var says metav1.Status
		_ = json.Unmarshal(body, &says) // a pod's error is none
		body, err = nil, errors.New(cmp.Or(says.Message, answer.Status))
	}
	if err != nil && answer.StatusCode != http.StatusNotFound {
		c.missed("read "+what, err)
	}
	return body
}

// compare compares this machine's clock with that of a pod or of the API server.
func (c *collector) compare(of string, sent time.Time, header string) {
	date, err := http.ParseTime(header)
	if err != nil {
		return
	}
	least, most := time.Until(date), date.Add(time.Second).Sub(sent) // Date has no fraction
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if before, ok := c.facts.ahead[of]; ok {
		least, most = max(before[0], least), min(before[1], most)
	}
	c.facts.ahead[of] = [2]time.Duration{least, most}
}

// list appends the items of a list, and adds the list to the archive unless name is empty. On an error known becomes
// false.
func list[T any](ctx context.Context, c *collector, into *[]T, known *bool, what, uri, name string) {
	var list struct{ Items []T }
	body := c.read(ctx, what, uri, "", math.MaxInt64)
	err := json.Unmarshal(body, &list)
	if err != nil && body != nil {
		c.missed("read "+what, err)
	}
	if err == nil && name != "" {
		c.archive.addJSON(name, json.RawMessage(body))
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	*into, *known = append(*into, list.Items...), *known && err == nil
}

func selecting(labels string) string { return "?labelSelector=" + url.QueryEscape(labels) }

func (c *collector) collect(ctx context.Context, clusters []seen, problem error) {
	c.facts.clusters = make([]examined, len(clusters))
	var kubernetes struct{ GitVersion string }
	_ = json.Unmarshal(c.read(ctx, "the version of Kubernetes", "/version", "", mostBytes), &kubernetes)
	c.versions["kubernetes"] = kubernetes.GitVersion
	for _, labels := range []string{"app=scale-to-zero", "app.kubernetes.io/name=cloudnative-pg"} {
		var deployments []appsv1.Deployment
		_, name, _ := strings.Cut(labels, "=")
		list(ctx, c, &deployments, &c.facts.replicasKnown, "the Deployments of "+name,
			"/apis/apps/v1/deployments"+selecting(labels), "deployments/"+name+".json")
		for i := range deployments {
			c.collectDeployment(ctx, &deployments[i])
		}
	}
	list(ctx, c, &c.facts.rules, new(bool), "the PrometheusRules", "/apis/monitoring.coreos.com/v1/prometheusrules", "")
	if problem != nil {
		c.missed("read the instances", problem)
	}
	var group errgroup.Group
	group.SetLimit(collectAtOnce)
	namespaces := map[string]bool{}
	for i, s := range clusters {
		if namespace := s.Cluster.Namespace; !namespaces[namespace] {
			namespaces[namespace] = true
			group.Go(func() error { c.collectNamespace(ctx, namespace); return nil })
		}
		if managed := s.Cluster.Spec.Managed; managed != nil && c.archive != nil {
			for j := range managed.Roles {
				c.archive.names = append(c.archive.names, managed.Roles[j].Name)
			}
		}
		group.Go(func() error {
			c.facts.clusters[i] = examined{s, c.explained(ctx, s, problem, c.facts.now)}
			c.collectCluster(ctx, &c.facts.clusters[i])
			return nil
		})
	}
	_ = group.Wait() // no function returns an error
	slices.Sort(c.unread)
}

// collectDeployment reads about a Deployment of the plugin or of the operator.
func (c *collector) collectDeployment(ctx context.Context, d *appsv1.Deployment) {
	for _, of := range slices.Concat(d.Spec.Template.Spec.InitContainers, d.Spec.Template.Spec.Containers) {
		c.versions[d.Namespace+"/"+d.Name+"/"+of.Name] = of.Image
	}
	if named(&d.Spec.Template.Spec, pluginContainer) == nil {
		return
	}
	core, before := "/api/v1/namespaces/"+d.Namespace, len(c.facts.replicas)
	c.facts.deployments = append(c.facts.deployments, *d)
	list(ctx, c, &c.facts.replicas, &c.facts.replicasKnown, "the pods of the plugin",
		core+"/pods"+selecting(metav1.FormatLabelSelector(d.Spec.Selector)), "plugin/pods.json")
	for _, pod := range c.facts.replicas[before:] {
		c.collectContainer(ctx, &pod, named(&pod.Spec, pluginContainer), "plugin/", true)
	}
	if c.archive != nil {
		list(ctx, c, new([]any), new(bool), "the ports of the gateway",
			core+"/configmaps"+selecting("scale-to-zero.cnpg-i.io/ports=true"), "plugin/ports.json")
		list(ctx, c, new([]any), new(bool), "the Events of the plugin", core+"/events"+someEvents, "plugin/events.json")
	}
}

func (c *collector) collectNamespace(ctx context.Context, namespace string) {
	in := "namespaces/" + namespace
	core, of := "/api/v1/"+in, " of the namespace "+namespace
	for _, reason := range []string{eventNotInjected, eventUnreachable} { // of all Events, the first would be all that is read
		selector := "&fieldSelector=involvedObject.kind%3DCluster,reason%3D" + reason
		list(ctx, c, &c.facts.events, new(bool), "the Events "+reason+of, core+"/events"+someEvents+selector, "")
	}
	if c.archive != nil {
		list(ctx, c, new([]any), new(bool), "the Events"+of, core+"/events"+someEvents, in+"/events.json")
		list(ctx, c, new([]any), new(bool), "the LimitRanges"+of, core+"/limitranges", in+"/limitranges.json")
	}
	list(ctx, c, &c.facts.services, &c.facts.routesKnown, "the Services"+of, core+"/services", "")
	list(ctx, c, &c.facts.slices, &c.facts.routesKnown, "the EndpointSlices"+of,
		"/apis/discovery.k8s.io/v1/"+in+"/endpointslices"+
			selecting(discoveryv1.LabelManagedBy+"="+endpointslice.ManagedBy), in+"/endpointslices.json")
}

func (c *collector) collectCluster(ctx context.Context, of *examined) {
	directory := "namespaces/" + of.String() + "/"
	c.archive.addJSON(directory+"cluster.json", of.Cluster)
	c.archive.addJSON(directory+"explain.json", of.explained)
	for i := range of.Pods {
		pod := &of.Pods[i]
		problem := of.explained.problem(pod.Name)
		if problem == mayNotAsk {
			c.missed("ask the sidecar of "+pod.Namespace+"/"+pod.Name, errors.New(problem))
		}
		c.archive.addJSON(directory+pod.Name+".json", pod)
		c.collectContainer(ctx, pod, named(&pod.Spec, container), directory, problem == "")
	}
}

// collectContainer reads the metrics of a container, if there is one and it answers, and the end of its log.
func (c *collector) collectContainer(
	ctx context.Context, pod *corev1.Pod, of *corev1.Container, directory string, answers bool,
) {
	if of == nil {
		return
	}
	name, path := pod.Namespace+"/"+pod.Name, fmt.Sprintf("/api/v1/namespaces/%s/pods/%s", pod.Namespace, pod.Name)
	c.mutex.Lock()
	c.versions[name+"/"+of.Name] = of.Image
	c.mutex.Unlock()
	read := func(what, uri, behind string) {
		text := c.read(ctx, "the "+what+" of "+name, path+uri, behind, mostBytes)
		c.archive.addText(directory+pod.Name+"."+what, string(text))
	}
	for _, port := range of.Ports {
		if answers && (port.Name == "metrics" || port.Name == container) { // the latter is the sidecar's, and the plugin's in the operator's pod
			read("metrics", fmt.Sprintf(":%d/proxy/metrics", port.ContainerPort), name)
		}
	}
	if c.archive != nil {
		read("log", fmt.Sprintf("/log?container=%s&tailLines=1000&limitBytes=%d&timestamps=true", of.Name, mostBytes), "")
	}
}
