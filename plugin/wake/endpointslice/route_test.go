package endpointslice

import (
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cloudnative-pg/cloudnative-pg/pkg/specs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// exposed is a Service as kubectl expose makes it of the pod of an instance: it selects by every label of the pod.
func exposed(name, role string) func(cnpgv1.Cluster) *corev1.Service {
	return func(c cnpgv1.Cluster) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "mine"},
			Spec: corev1.ServiceSpec{
				Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 5432, TargetPort: intstr.FromInt32(5432)}},
				Selector: map[string]string{
					LabelCluster: c.Name, "cnpg.io/instanceName": name, LabelPodRole: "instance", LabelInstanceRole: role, "role": role,
					"app.kubernetes.io/name": "postgresql", "app.kubernetes.io/instance": c.Name, "app.kubernetes.io/version": "17",
					"app.kubernetes.io/component": "database", "app.kubernetes.io/managed-by": "cloudnative-pg",
				},
			},
		}
	}
}

// ofOrders says that the operator made a pod for the cluster.
var ofOrders = []metav1.OwnerReference{{Kind: "Cluster", Name: "orders", Controller: ptr.To(true)}}

// The informers list Clusters in random order, and what is said of a Service is kept in an annotation.
func TestRoute_saysTheSameInWhateverOrderTheClustersAreListed(t *testing.T) {
	t.Parallel()
	c, sales, stock := cluster(1), cluster(1), cluster(1)
	sales.Name, stock.Name = "sales", "stock"
	service := made(specs.CreateClusterReadWriteService(*c))
	selecting(map[string]string{LabelPodRole: "instance"})(service)
	verdict, obstacle := Route(service, c, nil, []cnpgv1.Cluster{*sales, *stock})
	again, other := Route(service, c, nil, []cnpgv1.Cluster{*stock, *sales})
	if verdict != Unroutable || again != Unroutable || obstacle != other {
		t.Errorf("%v: %q, and then %v: %q", verdict, obstacle, again, other)
	}
}

func TestIsInstance(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		change func(*corev1.Pod)
		want   bool
	}{
		{"a pod that the Cluster controls is one", func(*corev1.Pod) {}, true},
		{"a copy that only has its labels is none", func(p *corev1.Pod) { p.OwnerReferences = nil }, false},
		{"nor one that the Cluster merely owns", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Cluster", Name: "orders"}}
		}, false},
		{"nor one of another cluster", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Cluster", Name: "sales", Controller: ptr.To(true)}}
		}, false},
		{"nor one of a Job with its labels", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "orders", Controller: ptr.To(true)}}
		}, false},
		{"nor a pooler's", func(p *corev1.Pod) { p.Labels[LabelPodRole] = "pooler" }, false},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{LabelCluster: "orders", LabelPodRole: "instance"}, OwnerReferences: ofOrders,
		}}
		row.change(pod)
		if got := IsInstance(pod); got != row.want {
			t.Errorf("%s: got %t", row.rule, got)
		}
	}
}

func selecting(selector map[string]string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Selector = selector }
}

func balanced(key, value string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type, s.Annotations = corev1.ServiceTypeLoadBalancer, map[string]string{key: value}
	}
}

func TestRoute_whoComesToTheGateway(t *testing.T) {
	t.Parallel()
	same := func(*corev1.Service) {}
	primary := specs.CreateClusterReadWriteService
	replicas := specs.CreateClusterReadOnlyService
	for _, row := range []struct {
		rule      string
		make      func(cnpgv1.Cluster) *corev1.Service
		instances int
		change    func(*corev1.Service)
		want      Verdict
	}{
		{"-rw leads to the gateway", primary, 1, same, Routable},
		{"-r does", specs.CreateClusterReadService, 1, same, Routable},
		{"-ro does with several instances", replicas, 2, same, Routable},
		{"-ro does not with one instance: it has no endpoints awake either", replicas, 1, same, Unrelated},
		{"-any is not for clients", specs.CreateClusterAnyService, 2, same, Unrelated},
		{"a headless Service's clients use the instances' own port", primary, 1, func(s *corev1.Service) { s.Spec.ClusterIP = "None" }, Unrelated},
		{"a Service without an address yet does not", primary, 1, func(s *corev1.Service) { s.Spec.ClusterIP = "" }, Unrelated},
		{"a LoadBalancer of managed.services.additional does", primary, 1, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }, Routable},
		{"a Pooler's does not", primary, 1, selecting(map[string]string{"cnpg.io/poolerName": "p", LabelCluster: "orders"}), Unrelated},
		{"a Service of another cluster's pods does not", primary, 1, func(s *corev1.Service) { s.Spec.Selector[LabelCluster] = "other" }, Unrelated},
		{"a Service that is going does not", primary, 1, func(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, Unrelated},
		{"a Service of the exporter does not", primary, 1, func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(9187) }, Unrelated},
		{"a port by name does", primary, 1, func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("postgresql") }, Routable},
		{"UDP does not", primary, 1, func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP }, Unrelated},
		{"without a selector nobody knows whom it leads to", primary, 1, selecting(nil), Unrelated},

		{"a Service that somebody else made does", primary, 1, func(s *corev1.Service) { s.OwnerReferences, s.Labels = nil, nil }, Routable},
		{"one that kubectl expose made of the primary's pod does", exposed("orders-1", "primary"), 1, same, Routable},
		{"one of a standby's pod does", exposed("orders-2", "replica"), 2, same, Routable},
		{"one of a pod that was the primary does not: it leads nowhere awake either", exposed("orders-2", "primary"), 2, same, Unrelated},
		{"one of a pod of another name does not", exposed("orders-main", "primary"), 1, same, Unrelated},
		{"one that selects by a label that the instances inherit does", primary, 1, selecting(map[string]string{"team": "x"}), Routable},
		{"one that selects other pods does not", primary, 1, selecting(map[string]string{"team": "y"}), Unrelated},
		{"one that selects by the version alone does not", primary, 1, selecting(map[string]string{"app.kubernetes.io/version": "17"}), Unrelated},
		{"another's that publishes addresses that are not ready does", primary, 1, func(s *corev1.Service) { s.OwnerReferences, s.Spec.PublishNotReadyAddresses = nil, true }, Routable},
		{"session affinity is no obstacle", primary, 1, func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }, Routable},
		{"a load balancer of the nodes is none", primary, 1, balanced(annotationTargetType, "instance"), Routable},
		{"a network endpoint group of an Ingress is none", primary, 1, balanced(annotationNEG, `{"ingress":true}`), Routable},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			c := cluster(row.instances)
			c.Spec.InheritedMetadata = &cnpgv1.EmbeddedObjectMetadata{Labels: map[string]string{"team": "x"}}
			service := made(row.make(*c))
			row.change(service)
			if got, why := Route(service, c, nil, nil); got != row.want || why != "" {
				t.Errorf("got %d %q, want %d", got, why, row.want)
			}
		})
	}
}

func TestRoute_namesWhatIsInTheWay(t *testing.T) {
	t.Parallel()
	tagged := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{LabelCluster: "orders", LabelPodRole: "instance", LabelInstanceRole: "primary", "by": "hand"}, OwnerReferences: ofOrders}}
	sales := cluster(1)
	sales.Name = "sales"
	for _, row := range []struct {
		rule   string
		change func(*corev1.Service)
		want   string
	}{
		{"an ExternalName", func(s *corev1.Service) { s.Spec.Type, s.Spec.ClusterIP = corev1.ServiceTypeExternalName, "" }, "ExternalName"},
		{"internal traffic that stays on the node", func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
		}, "internalTrafficPolicy is Local"},
		{"external traffic that stays on the node", func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }, "externalTrafficPolicy is Local"},
		{"a network endpoint group", balanced(annotationNEG, `{"exposed_ports":{"5432":{}}}`), "network endpoint group"},
		{"a load balancer of pods", balanced(annotationTargetType, "ip"), "target type ip"},
		{"one of the older annotation", balanced(annotationLoadType, "nlb-ip"), "target type ip"},
		{"one whose class takes pods unless told otherwise", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, ptr.To(classAutoMode)
		}, "target type ip"},
		{"instances of two clusters", selecting(map[string]string{LabelPodRole: "instance"}), "of other Clusters too"},
		{"a label that somebody gave the pods", selecting(map[string]string{"by": "hand"}), "labels that only their pods have"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			c := cluster(1)
			service := made(specs.CreateClusterReadWriteService(*c))
			row.change(service)
			verdict := func() (Verdict, string) { return Route(service, c, []corev1.Pod{tagged}, []cnpgv1.Cluster{*sales}) }
			if got, why := verdict(); got != Unroutable || !strings.Contains(why, row.want) {
				t.Errorf("got %d %q, want one that contains %q", got, why, row.want)
			}
			if service.Annotations == nil {
				service.Annotations = map[string]string{}
			}
			for value, want := range map[string]Verdict{"accept": Accepted, "reject": Unroutable, "yes": Unroutable} {
				service.Annotations[contract.AnnotationUnroutable] = value
				got, why := verdict()
				if got != want || value == "yes" && !strings.Contains(why, `has the value "yes": it must be "accept" or "reject"`) {
					t.Errorf("%s: got %d %q, want %d", value, got, why, want)
				}
			}
		})
	}
}
