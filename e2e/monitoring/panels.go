package monitoring

// of restricts series to the clusters that are chosen.
const of = `namespace=~"$namespace", cluster=~"$cluster"`

// here restricts series to the plugin that is chosen.
const here = `namespace=~"$operatorNamespace"`

// state is, for every cluster, 1 while it is in the state. Every replica of the plugin has the series of every cluster.
func state(name string) string {
	return `max by (namespace, cluster) (cnpg_scale_to_zero_cluster_state{state="` + name + `", ` + of + `})`
}

// over adds up, over the time that is looked at, what a counter rises by in a second. A counter of the plugin begins anew with
// each of its pods, and several pods count the same: of those the highest counts, five minutes at a time.
func over(counter string) string {
	return `sum(sum_over_time((max by (namespace, cluster) (rate(` + counter + `{` + of + `}[5m])))[$__range:5m])) * 300`
}

// the states' colours
const (
	grey   = "#8e8e8e"
	green  = "green"
	yellow = "yellow"
	blue   = "blue"
	red    = "red"
)

func rows() []row {
	return []row{{"Clusters", clusters()}, {"Waking", waking()}, {"Sidecars", sidecars()}}
}

func clusters() []panel {
	return []panel{
		figure("Asleep", "Clusters that sleep now.", "none", `sum(`+state("asleep")+`)`),
		figure("Awake", "Clusters that are awake now, and would sleep.", "none", `sum(`+state("awake")+`)`),
		figure("Time asleep", "Of the time that is looked at, on average over the clusters.", "percentunit",
			`avg(max by (namespace, cluster) (avg_over_time(cnpg_scale_to_zero_cluster_state{state="asleep", `+of+`}[$__range])))`),
		figure("Saved CPU-hours", "CPU that sleeping PostgreSQL containers did not request. Clusters that request none are left out.", "none",
			over("cnpg_scale_to_zero_saved_cpu_seconds_total")+` / 3600`),
		figure("Saved GiB-hours", "Memory that sleeping PostgreSQL containers did not request. Clusters that request none are left out.", "none",
			over("cnpg_scale_to_zero_saved_memory_byte_seconds_total")+` / 3600 / 1024 ^ 3`),
		figure("Not understood", "Annotations that are not understood: the feature is off for their clusters.", "none",
			`sum(max by (namespace, cluster) (cnpg_scale_to_zero_settings_invalid{`+of+`}))`),
		timeline("State", "The state of every cluster.", map[string]result{
			"1": {"disabled", grey, 0}, "2": {"awake", green, 1}, "3": {"hibernating", yellow, 2}, "4": {"asleep", blue, 3},
		}, asked{"{{namespace}}/{{cluster}}", state("disabled") + ` + 2 * ` + state("awake") + ` + 3 * ` + state("hibernating") + ` + 4 * ` + state("asleep")}),
		idleAgainstThreshold(),
		list("Asleep for", "Since the last pod was gone.", "s", "asleep for",
			`time() - max by (namespace, cluster) (cnpg_scale_to_zero_asleep_since_timestamp_seconds{`+of+`})`),
		timeline("What keeps it awake", "As the primary sees it; waiting for the threshold is left out.",
			map[string]result{"1": {"blocked", red, 0}},
			asked{"{{namespace}}/{{cluster}}: {{reason}}", `max by (namespace, cluster, reason) (
				cnpg_scale_to_zero_blocked{reason!~"waiting|not_primary", ` + of + `} == 1
				unless on (namespace, cluster, pod) cnpg_scale_to_zero_blocked{reason="not_primary"} == 1)`}),
		curve("Saved CPU", "CPU that sleeping clusters do not request.", "none", asked{"{{namespace}}/{{cluster}}",
			`max by (namespace, cluster) (rate(cnpg_scale_to_zero_saved_cpu_seconds_total{` + of + `}[$__rate_interval]))`}),
		curve("Saved memory", "Memory that sleeping clusters do not request.", "bytes", asked{"{{namespace}}/{{cluster}}",
			`max by (namespace, cluster) (rate(cnpg_scale_to_zero_saved_memory_byte_seconds_total{` + of + `}[$__rate_interval]))`}),
		curve("Suspended schedules", "ScheduledBackups that are suspended because their cluster sleeps.", "none", asked{"{{namespace}}/{{cluster}}",
			`max by (namespace, cluster) (cnpg_scale_to_zero_suspended_schedules{` + of + `})`}),
		curve("Instances up", "As CloudNativePG's own metrics tell.", "none", asked{"{{namespace}}/{{cluster}}",
			`sum by (namespace, cluster) (cnpg_collector_up{` + of + `})`}),
	}
}

// idleAgainstThreshold shows the instance that has been idle for the shortest time, since that is what counts.
func idleAgainstThreshold() panel {
	p := curve("Idle time against threshold", "Of the instance that has been idle for the shortest time. Absent where it is not known.", "s",
		asked{"{{namespace}}/{{cluster}}", `min by (namespace, cluster) (cnpg_scale_to_zero_idle_seconds{` + of + `})`},
		asked{"threshold of {{namespace}}/{{cluster}}", `max by (namespace, cluster) (cnpg_scale_to_zero_threshold_seconds{` + of + `})`})
	p.FieldConfig.Overrides = []override{{matcher{"byFrameRefID", "B"}, []property{
		{"custom.lineStyle", options{"fill": "dash", "dash": []int{10, 10}}}, {"custom.fillOpacity", 0},
	}}}
	return p
}

func waking() []panel {
	quantile := func(q, metric, by string) string {
		return `histogram_quantile(` + q + `, sum by (` + by + `) (rate(` + metric + `_bucket{` + here + `}[$__rate_interval])))`
	}
	const wake, phase = "cnpg_scale_to_zero_wake_duration_seconds", "cnpg_scale_to_zero_connection_phase_seconds"
	rise := func(by, metric, matchers string) string {
		return `sum by (` + by + `) (increase(` + metric + `{` + matchers + `}[$__rate_interval]))`
	}
	return []panel{
		curve("Wakes", "By what began them and how they ended.", "none",
			asked{"{{trigger}}: {{result}}", rise("trigger, result", "cnpg_scale_to_zero_wakes_total", here)}),
		curve("How long wakes took", "From the first client to PostgreSQL accepting sessions.", "s",
			asked{"half", quantile("0.5", wake, "le")}, asked{"nine of ten", quantile("0.9", wake, "le")}, asked{"99 of 100", quantile("0.99", wake, "le")}),
		list("Last woken, by whom", "The address of the client whose connection woke the cluster, and how long ago. A wake by hand is not shown.", "s", "ago",
			`time() - max by (namespace, cluster, by) (cnpg_scale_to_zero_last_wake_timestamp_seconds{`+of+`})`),
		curve("Parts of a client's wait", "Nine of ten clients that got their session waited no longer.", "s",
			asked{"{{phase}}", quantile("0.9", phase, "le, phase")}),
		curve("Connections", "Clients that wait for their cluster, and sessions that go through the gateway.", "none",
			asked{"held", `sum(cnpg_scale_to_zero_held_connections{` + here + `})`},
			asked{"passed on", `sum(cnpg_scale_to_zero_spliced_connections{` + here + `})`}),
		curve("Ignored connections", "They wake nobody.", "none",
			asked{"{{reason}}", rise("reason", "cnpg_scale_to_zero_ignored_connections_total", here)}),
		curve("Refused connections", "Clients that got no session.", "none",
			asked{"{{reason}}", rise("reason", "cnpg_scale_to_zero_refused_connections_total", here)}),
		curve("Attempts to sleep", "By how they ended.", "none",
			asked{"{{result}}", rise("result", "cnpg_scale_to_zero_hibernations_total", of)}),
		curve("Ports of the gateway", "One for each Service of a cluster that has slept.", "none",
			asked{"used", `max(cnpg_scale_to_zero_gateway_ports_used{` + here + `})`},
			asked{"limit", `min(cnpg_scale_to_zero_gateway_ports_limit{` + here + `})`}),
	}
}

func sidecars() []panel {
	return []panel{
		curve("Pods by sidecar image", "A new image reaches a pod when it is next made.", "none", asked{"{{sidecar_image}}",
			`sum by (sidecar_image) (max by (namespace, cluster, sidecar_image) (cnpg_scale_to_zero_instance_pods{` + of + `}))`}),
		curve("Sidecars by version", "As they say themselves.", "none",
			asked{"{{version}}", `count by (version) (cnpg_scale_to_zero_build_info{` + of + `})`}),
		curve("Looks", "In a second; an idle instance is looked at once a minute.", "none",
			asked{"{{namespace}}/{{pod}}", `sum by (namespace, pod) (rate(cnpg_scale_to_zero_samples_total{` + of + `}[$__rate_interval]))`}),
		curve("Looks that failed", "What is not known is never idle.", "none",
			asked{"{{namespace}}/{{pod}}", `sum by (namespace, pod) (increase(cnpg_scale_to_zero_sample_errors_total{` + of + `}[$__rate_interval])) > 0`}),
		curve("Sessions that ended", "As the kernel tells, by what they came to.", "none", asked{"{{verdict}}",
			`sum by (verdict) (increase(cnpg_scale_to_zero_socket_events_total{` + of + `}[$__rate_interval]))`}),
		curve("Sessions", "Of clients, by state.", "none",
			asked{"{{state}}", `sum by (state) (cnpg_scale_to_zero_sessions{` + of + `})`}),
		list("Since the newest look", "Where PostgreSQL is looked at.", "s", "since",
			`time() - max by (namespace, cluster, pod) (cnpg_scale_to_zero_last_sample_timestamp_seconds{`+of+`})`),
		list("Without the kernel's reports", "These are looked at every second.", "none", "supported",
			`min by (namespace, cluster, pod) (cnpg_scale_to_zero_socket_events_supported{`+of+`}) == 0`),
	}
}
