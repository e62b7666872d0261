package monitoring

// What restricts series: of to the clusters that are chosen, one to the one whose details are shown, here to the plugins.
const (
	of   = `k8s_cluster=~"$k8sCluster", namespace=~"$namespace", cluster=~"$cluster"`
	one  = `k8s_cluster=~"$k8sCluster", namespace=~"$namespace", cluster=~"$detail"`
	here = `k8s_cluster=~"$k8sCluster", namespace=~"$operatorNamespace"`
)

// perCluster are the labels that tell clusters apart, as name is how a legend does.
const (
	perCluster = "k8s_cluster, namespace, cluster"
	name       = "{{namespace}}/{{cluster}}"
)

// states of a cluster, by the number that a timeline shows them with.
var states = []struct{ name, color string }{{"disabled", grey}, {"awake", green}, {"hibernating", yellow}, {"dozing", purple}, {"asleep", blue}}

// state is, for every cluster, 1 while it is in the state and else 0. Every replica of the plugin has the series of every cluster;
// for a moment one may know less than another.
func state(name, which string) string {
	return `max by (` + perCluster + `) (cnpg_scale_to_zero_cluster_state{state="` + name + `", ` + which + `})`
}

// stateNumber is, for every cluster, the number of its state. A replica has it in one state, whose number is chosen among those of
// the replicas after that: added up over replicas that disagree, their states would be none.
func stateNumber(which string) string {
	sum := ""
	for i, s := range states {
		if i > 0 {
			sum += ` + ignoring (state) `
		}
		sum += string(rune('1'+i)) + ` * cnpg_scale_to_zero_cluster_state{state="` + s.name + `", ` + which + `}`
	}
	return `max by (` + perCluster + `) (` + sum + `)`
}

// timeAsleep is, for every cluster, the part of the time that is looked at in which it slept. It is looked at over all replicas
// five minutes at a time: an average of one replica is that of the time in which that was there.
func timeAsleep(which string) string {
	return `avg_over_time((` + state("asleep", which) + `)[$__range:5m])`
}

// over is what each of the labels' counters rose by in the time that is looked at. A counter of the plugin begins anew with each of
// its pods, and several pods count the same: of those the highest counts, five minutes at a time.
func over(by, counter, which string) string {
	return `sum by (` + by + `) (sum_over_time((max by (` + perCluster + `) (rate(` + counter + `{` + which + `}[5m])))[$__range:5m])) * 300`
}

// saved are the CPU-hours and GiB-hours that were saved, less what the sidecars of awake clusters cost.
func savedCPU(which string) string {
	return `(` + over("", "cnpg_scale_to_zero_saved_cpu_seconds_total", which) + ` - ` + over("", "cnpg_scale_to_zero_sidecar_cpu_seconds_total", which) + `) / 3600`
}

func savedMemory(which string) string {
	return `(` + over("", "cnpg_scale_to_zero_saved_memory_byte_seconds_total", which) + ` - ` +
		over("", "cnpg_scale_to_zero_sidecar_memory_byte_seconds_total", which) + `) / 3600 / 1024 ^ 3`
}

// rise is by how much counters rose from one point of a curve to the next.
func rise(by, metric, matchers string) string {
	return `sum by (` + by + `) (increase(` + metric + `{` + matchers + `}[$__rate_interval]))`
}

// quantile of a histogram of the plugin.
func quantile(q, metric, by string) string {
	return `histogram_quantile(` + q + `, sum by (` + by + `) (rate(` + metric + `_bucket{` + here + `}[$__rate_interval])))`
}

// top are the first of an instant's series.
func top(expression string) string { return `topk($top, ` + expression + `)` }

// blocked is what keeps a cluster awake, as its primary sees it; waiting for the threshold is nothing that does.
func blocked(which string) string {
	return `cnpg_scale_to_zero_blocked{reason!~"waiting|not_primary", ` + which + `} == 1
		unless on (` + perCluster + `, pod) cnpg_scale_to_zero_blocked{reason="not_primary"} == 1`
}

// the colors
const (
	grey   = "#8e8e8e"
	green  = "green"
	yellow = "yellow"
	blue   = "blue"
	purple = "purple"
	red    = "red"
	text   = "text"
)
