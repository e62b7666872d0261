package endpointslice

import (
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cloudnative-pg/cloudnative-pg/pkg/management/pgbouncer/config"
	"github.com/cloudnative-pg/cloudnative-pg/pkg/specs/pgbouncer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestServesPooler_andRoutesIt(t *testing.T) {
	t.Parallel()
	if config.PgBouncerPort != contract.PostgresPort || config.PgBouncerPortName != NamePgBouncer {
		t.Fatalf("the operator's PgBouncer listens on %d, called %s", config.PgBouncerPort, config.PgBouncerPortName)
	}
	selecting := func(selector map[string]string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.Selector = selector }
	}
	number := intstr.FromInt32(contract.PostgresPort)
	for _, row := range []struct {
		rule           string
		change         func(*corev1.Service)
		serves, routes bool
	}{
		{"the operator's", func(*corev1.Service) {}, true, true},
		{"a person's, by the port's number", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = number }, true, true},
		{"one with more labels of the pods", selecting(map[string]string{labelPooler: "pool", "team": "x", LabelCluster: "orders"}), true, true},
		{"one of another Pooler", selecting(map[string]string{labelPooler: "other"}), false, true},
		{"one of other labels", selecting(map[string]string{labelPooler: "pool", "team": "y"}), false, true},
		{"one of all Poolers", func(s *corev1.Service) {
			s.Spec.Selector, s.Spec.Ports[0].TargetPort = map[string]string{LabelPodRole: "pooler"}, number
		}, true, false},
		{"a headless one", func(s *corev1.Service) { s.Spec.ClusterIP = headless }, false, true},
		{"one of the exporter", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("metrics") }, false, true},
		{"one without a selector", selecting(nil), false, false},
		{"one that is going", func(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, true, false},
		{"one whose clients reach pods of their node only", func(s *corev1.Service) {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}, true, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			pooler := &cnpgv1.Pooler{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pool"}, Spec: cnpgv1.PoolerSpec{
				Cluster:  cnpgv1.LocalObjectReference{Name: "orders"},
				Template: &cnpgv1.PodTemplateSpec{ObjectMeta: cnpgv1.Metadata{Labels: map[string]string{"team": "x"}}},
			}}
			made, err := pgbouncer.Service(pooler, cluster(1))
			if err != nil {
				t.Fatal(err)
			}
			made.Spec.ClusterIP = "10.96.0.7"
			row.change(made)
			if serves, routes := ServesPooler(made, pooler), RoutesPooler(made); serves != row.serves || routes != row.routes {
				t.Errorf("it serves the Pooler: %t, and can lead to the gateway: %t", serves, routes)
			}
			if verdict, _ := Route(made, cluster(1), nil, nil); verdict != Unrelated {
				t.Errorf("it leads to instances: %d", verdict)
			}
		})
	}
}

func TestServesPooler_byTheLabelsThatTheOperatorGives(t *testing.T) {
	t.Parallel()
	pooler := &cnpgv1.Pooler{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pool"}, Spec: cnpgv1.PoolerSpec{
		Cluster: cnpgv1.LocalObjectReference{Name: "orders"}, PgBouncer: &cnpgv1.PgBouncerSpec{},
	}, Status: cnpgv1.PoolerStatus{Image: "pgbouncer"}}
	deployment, err := pgbouncer.Deployment(pooler, cluster(1))
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: deployment.Spec.Template.Labels}}
	if !IsPooler(pod) {
		t.Errorf("a pod with the labels %v is none of a Pooler", pod.Labels)
	}
	service := &corev1.Service{Spec: corev1.ServiceSpec{
		ClusterIP: "10.96.0.7", Selector: pod.Labels, Ports: []corev1.ServicePort{{Port: 5432, TargetPort: intstr.FromString("pgbouncer")}},
	}}
	if !ServesPooler(service, pooler) {
		t.Errorf("the pods have other labels: %v", pod.Labels)
	}
}
