package tests

import (
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The gateway does not bypass NetworkPolicies: a client that they bar from the instances wakes the cluster but must then
// connect directly; one that they admit is forwarded. The tests' network does not enforce policies, so that the direct
// connection succeeds.
func TestNetworkPoliciesHoldThroughTheGateway(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "clients"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"cnpg.io/podRole": "instance"}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
				PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"may": "connect"}},
			}}}},
		},
	}
	s.must(kube.Create(s.ctx, policy))
	s.sleeps(c)
	s.connectsAgain(c) // the client that the policies bar

	pod := s.client()
	before := pod.DeepCopy()
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels["may"] = "connect"
	s.must(kube.Patch(s.ctx, pod, client.MergeFrom(before)))
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.sleeps(c)
	if answer, err := kube.QueryAs(s.ctx, c, "rw", fromAfar+" sslmode=disable", "select 'passed'"); err != nil || answer != "passed" {
		t.Errorf("the client that the policies let in got %q (%v)", answer, err)
	}
	barred := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"may":null}}}`))
	s.must(kube.Patch(s.ctx, pod, barred))
}
