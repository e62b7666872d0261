package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestDisruption(t *testing.T) {
	t.Parallel()
	taint := func(key, value string, effect corev1.TaintEffect) corev1.NodeSpec {
		return corev1.NodeSpec{Taints: []corev1.Taint{{Key: key, Value: value, Effect: effect}}}
	}
	dedicated := corev1.Toleration{Key: "dedicated", Operator: corev1.TolerationOpEqual, Value: "databases", Effect: corev1.TaintEffectNoSchedule}
	everything := corev1.Toleration{Operator: corev1.TolerationOpExists}
	for _, row := range []struct {
		rule        string
		node        corev1.NodeSpec
		tolerations []corev1.Toleration
		want        string
	}{
		{"a node without taints", corev1.NodeSpec{}, nil, ""},
		{"kubectl drain cordons first", corev1.NodeSpec{Unschedulable: true}, nil, "is cordoned"},
		{"and evicts what tolerates that too", corev1.NodeSpec{Unschedulable: true}, []corev1.Toleration{everything}, "is cordoned"},
		{"Karpenter disrupts it", taint("karpenter.sh/disrupted", "", corev1.TaintEffectNoSchedule), nil, "has the taint karpenter.sh/disrupted:NoSchedule"},
		{
			"the cluster autoscaler removes it", taint("ToBeDeletedByClusterAutoscaler", "1", corev1.TaintEffectNoSchedule), nil,
			"has the taint ToBeDeletedByClusterAutoscaler:NoSchedule",
		},
		{"it is only a candidate", taint("DeletionCandidateOfClusterAutoscaler", "1", corev1.TaintEffectPreferNoSchedule), nil, ""},
		{"what is not tolerated is evicted", taint("example.org/repair", "", corev1.TaintEffectNoExecute), nil, "has the taint example.org/repair:NoExecute"},
		{"the taint that the pod was placed in spite of", taint("dedicated", "databases", corev1.TaintEffectNoSchedule), []corev1.Toleration{dedicated}, ""},
		{"another value of it", taint("dedicated", "web", corev1.TaintEffectNoSchedule), []corev1.Toleration{dedicated}, "has the taint dedicated:NoSchedule"},
		{"memory is short", taint(corev1.TaintNodeMemoryPressure, "", corev1.TaintEffectNoSchedule), nil, "is short of memory"},
		{"also if that is tolerated", taint(corev1.TaintNodeMemoryPressure, "", corev1.TaintEffectNoSchedule), []corev1.Toleration{everything}, "is short of memory"},
		{"a node that is not ready deletes no pod", taint(corev1.TaintNodeNotReady, "", corev1.TaintEffectNoSchedule), nil, ""},
		{"nor does one that cannot be reached", taint(corev1.TaintNodeUnreachable, "", corev1.TaintEffectNoExecute), nil, ""},
		{"nor does one whose machine is off", taint("node.cloudprovider.kubernetes.io/shutdown", "", corev1.TaintEffectNoSchedule), nil, ""},
		{"the second of its taints", corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}, {Key: "example.org/repair", Effect: corev1.TaintEffectNoSchedule},
		}}, nil, "has the taint example.org/repair:NoSchedule"},
	} {
		if got := Disruption(&corev1.Node{Spec: row.node}, row.tolerations); got != row.want {
			t.Errorf("%s: %q, want %q", row.rule, got, row.want)
		}
	}
}
