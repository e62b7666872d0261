package monitoring

func waking() []panel {
	const wake, phase = "cnpg_scale_to_zero_wake_duration_seconds", "cnpg_scale_to_zero_connection_phase_seconds"
	return []panel{
		heatMap("How long wakes took", "From the first client to PostgreSQL accepting sessions, by the upper bound in seconds.", "s",
			`sum by (le) (increase(`+wake+`_bucket{`+here+`}[$__rate_interval]))`),
		curve("Wake latency", "Half, nine of ten, and 99 of 100 wakes took no longer, by how deep the cluster slept.", "s",
			asked{"{{depth}} p50", quantile("0.5", wake, "le, depth")}, asked{"{{depth}} p90", quantile("0.9", wake, "le, depth")},
			asked{"{{depth}} p99", quantile("0.99", wake, "le, depth")}),
		curve("Wakes", "By what began them, how deep the cluster slept, and how they ended.", "none",
			asked{"{{trigger}}, {{depth}}: {{result}}", rise("trigger, depth, result", "cnpg_scale_to_zero_wakes_total", here)}),
		curve("Parts of a client's wait", "Nine of ten clients that got their session waited no longer.", "s",
			asked{"{{phase}}", quantile("0.9", phase, "le, phase")}),
		curve("Connections", "Clients that wait for their cluster, and sessions that go through the gateway.", "none",
			asked{"held", `sum(cnpg_scale_to_zero_held_connections{` + here + `})`},
			asked{"passed on", `sum(cnpg_scale_to_zero_spliced_connections{` + here + `})`}),
		curve("Queued wakes", "Wakes that wait since the addresses of their clients have begun as many as they may.", "none",
			asked{"queued", `sum(cnpg_scale_to_zero_queued_wakes{` + here + `})`}),
		curve("Refused connections", "Clients that got no session.", "none",
			asked{"{{reason}}", rise("reason", "cnpg_scale_to_zero_refused_connections_total", here)}),
		curve("Ignored connections", "They wake nobody.", "none",
			asked{"{{reason}}", rise("reason", "cnpg_scale_to_zero_ignored_connections_total", here)}),
		curve("Ports of the gateway", "One for each Service of a cluster that has slept.", "none",
			asked{"used", `max(cnpg_scale_to_zero_gateway_ports_used{` + here + `})`},
			asked{"limit", `min(cnpg_scale_to_zero_gateway_ports_limit{` + here + `})`}),
	}
}

func plugin() []panel {
	const week = 7 * 24 * 3600
	return []panel{
		curve("Replicas", "Those that are scraped.", "none", asked{"{{namespace}}",
			`count by (k8s_cluster, namespace) (cnpg_scale_to_zero_injections_total{operation="TYPE_CREATE", result="injected", ` + here + `})`}),
		list("Certificates", "How long those between the operator and the plugin are valid. Not there where the plugin is in the operator's pod.", "s", "valid for",
			`min by (k8s_cluster, namespace, certificate) (cnpg_scale_to_zero_certificate_expiry_timestamp_seconds{`+here+`}) - time()`,
			base(red), step(week, yellow), step(3*week, green)),
		curve("Calls of the operator", "In a second, by method.", "reqps", asked{"{{method}}: {{result}}",
			`sum by (method, result) (rate(cnpg_scale_to_zero_operator_calls_total{` + here + `}[$__rate_interval])) > 0`}),
		list("Without a route to the gateway", "Services of sleeping clusters whose clients would be refused.", "none", "Services",
			top(`max by (`+perCluster+`) (cnpg_scale_to_zero_unrouted_services{`+of+`}) > 0`), base(red)),
	}
}

func sidecars() []panel {
	perPod := perCluster + ", pod"
	return []panel{
		curve("Pods by sidecar image", "A new image reaches a pod when it is next made.", "none", asked{"{{sidecar_image}}",
			`sum by (sidecar_image) (max by (` + perCluster + `, sidecar_image) (cnpg_scale_to_zero_instance_pods{` + of + `}))`}),
		curve("Sidecars by version", "As they say themselves.", "none",
			asked{"{{version}}", `count by (version) (cnpg_scale_to_zero_build_info{` + of + `})`}),
		curve("Samples", "In a second, of all sidecars; an idle instance is sampled once a minute.", "none",
			asked{"samples", `sum(rate(cnpg_scale_to_zero_samples_total{` + of + `}[$__rate_interval]))`},
			asked{"that failed", `sum(rate(cnpg_scale_to_zero_sample_errors_total{` + of + `}[$__rate_interval]))`}),
		curve("Sessions that ended", "As the kernel tells, by what they came to.", "none", asked{"{{verdict}}",
			`sum by (verdict) (increase(cnpg_scale_to_zero_socket_events_total{` + of + `}[$__rate_interval]))`}),
		list("Samples that failed", "What is not known is never idle.", "none", "failed",
			top(`sum by (`+perPod+`) (increase(cnpg_scale_to_zero_sample_errors_total{`+of+`}[$__range])) > 0`), base(yellow)),
		list("Since the newest sample", "Where PostgreSQL is sampled.", "s", "since",
			top(`time() - max by (`+perPod+`) (cnpg_scale_to_zero_last_sample_timestamp_seconds{`+of+`})`), base(green), step(300, yellow), step(900, red)),
		list("Without the kernel's reports", "These are sampled every second.", "none", "supported",
			`bottomk($top, min by (`+perPod+`) (cnpg_scale_to_zero_socket_events_supported{`+of+`}) == 0)`),
	}
}
