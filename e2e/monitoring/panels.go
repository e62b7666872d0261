package monitoring

import "strconv"

func rows() []row {
	return []row{{"Fleet", fleet()}, {"One cluster: $detail", detail()}, {"Waking", waking()}, {"Plugin", plugin()}, {"Sidecars", sidecars()}}
}

func fleet() []panel {
	return []panel{
		narrow(figure("Asleep", "Clusters that are hibernated now.", "none", `sum(`+state("asleep", of)+`)`, base(blue))),
		narrow(figure("Dozing", "Clusters that doze now: PostgreSQL is stopped, and its pod is kept.", "none", `sum(`+state("dozing", of)+`)`, base(purple))),
		narrow(figure("Awake", "Clusters that are awake now, and would sleep.", "none", `sum(`+state("awake", of)+`)`, base(green))),
		figure("Time asleep", "Of the chosen time range, on average over the clusters.", "percentunit", `avg(`+timeAsleep(of)+`)`, base(text)),
		figure("Saved CPU-hours", "CPU that sleeping PostgreSQL containers did not request, less what the sidecars of awake clusters did.", "none", savedCPU(of)),
		figure("Saved GiB-hours", "Memory that sleeping PostgreSQL containers did not request, less what the sidecars of awake clusters did.", "none", savedMemory(of)),
		figure("Saved money", "Saved CPU-hours and GiB-hours times their prices. Whether fewer nodes are paid for is another question.", "none",
			`(`+savedCPU(of)+`) * $cpuPrice + (`+savedMemory(of)+`) * $memoryPrice`),
		figure("Not understood", "Annotations that are not understood: the feature is off for their clusters.", "none",
			`sum(max by (`+perCluster+`) (cnpg_scale_to_zero_settings_invalid{`+of+`}))`, base(green), step(1, yellow)),
		figure("Not reconciled", "Clusters that the operator does not reconcile because it cannot call the plugin.", "none",
			`sum(max by (`+perCluster+`) (cnpg_scale_to_zero_reconciliation_blocked{`+of+`}))`, base(green), step(1, red)),
		clustersByState(),
		list("Never asleep, and why", "Clusters that neither slept nor dozed in the chosen time range, by what kept them awake for the longest part of it.", "percentunit", "of the time",
			top(`max by (`+perCluster+`, reason) (avg_over_time(cnpg_scale_to_zero_blocked{reason!~"waiting|not_primary", `+of+`}[$__range])) > 0
				unless on (`+perCluster+`) max by (`+perCluster+`) (max_over_time(cnpg_scale_to_zero_cluster_state{state=~"asleep|dozing", `+of+`}[$__range])) == 1`),
			base(green), step(0.5, yellow), step(0.9, red)),
		list("Most often woken", "Wakes in the chosen time range.", "none", "wakes",
			top(`sum by (`+perCluster+`) (increase(cnpg_scale_to_zero_cluster_wakes_total{result="success", `+of+`}[$__range])) > 0`),
			base(green), step(24, yellow), step(96, red)),
		list("Last woken, by whom", "The address of the client whose connection woke the cluster, and how long ago. A wake by hand is not shown.", "s", "ago",
			`bottomk($top, time() - max by (`+perCluster+`, by) (cnpg_scale_to_zero_last_wake_timestamp_seconds{`+of+`}))`),
		list("Most saved", "CPU-hours that the cluster's PostgreSQL containers did not request in the chosen time range.", "none", "CPU-hours",
			top(over(perCluster, "cnpg_scale_to_zero_saved_cpu_seconds_total", of)+` / 3600 > 0`)),
		list("Asleep for", "Since the last pod was gone.", "s", "asleep for",
			top(`time() - max by (`+perCluster+`) (cnpg_scale_to_zero_asleep_since_timestamp_seconds{`+of+`})`)),
	}
}

// clustersByState has each cluster in one state.
func clustersByState() panel {
	var queries []asked
	var colors []override
	for i, s := range states {
		queries = append(queries, asked{s.name, `count(` + stateNumber(of) + ` == ` + strconv.Itoa(i+1) + `) or vector(0)`})
		colors = append(colors, override{matcher{"byName", s.name}, []property{{"color", color{"fixed", s.color}}}})
	}
	p := curve("Clusters by state", "What all replicas of the plugin say together.", "none", queries...)
	p.FieldConfig.Defaults.Custom["stacking"] = options{"mode": "normal", "group": "A"}
	p.FieldConfig.Defaults.Custom["fillOpacity"] = 60
	p.FieldConfig.Overrides = colors
	return p
}

func detail() []panel {
	values := map[string]result{}
	for i, s := range states {
		values[strconv.Itoa(i+1)] = result{s.name, s.color, i}
	}
	return []panel{
		timeline("State", "What all replicas of the plugin say together.", values, asked{name, stateNumber(one)}),
		timeline("What keeps it awake", "As the primary sees it; waiting for the threshold is left out.",
			map[string]result{"1": {"blocked", red, 0}}, asked{"{{reason}}", `max by (` + perCluster + `, reason) (` + blocked(one) + `)`}),
		idleAgainstThreshold(),
		curve("Sessions", "Of clients, by state.", "none", asked{"{{state}}", `sum by (state) (cnpg_scale_to_zero_sessions{` + one + `})`}),
		curve("Wakes of the cluster", "By how they ended.", "none", asked{"{{result}}", rise("result", "cnpg_scale_to_zero_cluster_wakes_total", one)}),
		curve("Attempts to sleep", "By how they ended.", "none",
			asked{"{{result}}", rise("result", "cnpg_scale_to_zero_hibernations_total", one)},
			asked{"doze: {{result}}", rise("result", "cnpg_scale_to_zero_dozes_total", one)}),
		curve("Saved CPU", "CPU that it does not request while it sleeps.", "none",
			asked{name, `max by (` + perCluster + `) (rate(cnpg_scale_to_zero_saved_cpu_seconds_total{` + one + `}[$__rate_interval]))`}),
		curve("Saved memory", "Memory that it does not request while it sleeps.", "bytes",
			asked{name, `max by (` + perCluster + `) (rate(cnpg_scale_to_zero_saved_memory_byte_seconds_total{` + one + `}[$__rate_interval]))`}),
		curve("Suspended schedules", "ScheduledBackups that are suspended because it sleeps.", "none",
			asked{name, `max by (` + perCluster + `) (cnpg_scale_to_zero_suspended_schedules{` + one + `})`}),
		curve("Instances up", "As CloudNativePG's own metrics tell.", "none", asked{name, `sum by (` + perCluster + `) (cnpg_collector_up{` + one + `})`}),
	}
}

// idleAgainstThreshold shows the instance that has been idle for the shortest time, since that is what counts.
func idleAgainstThreshold() panel {
	p := curve("Idle time against threshold", "Of the instance that has been idle for the shortest time. Absent where it is not known.", "s",
		asked{name, `min by (` + perCluster + `) (cnpg_scale_to_zero_idle_seconds{` + one + `})`},
		asked{"threshold of " + name, `max by (` + perCluster + `) (cnpg_scale_to_zero_threshold_seconds{` + one + `})`})
	p.FieldConfig.Overrides = []override{{matcher{"byFrameRefID", "B"}, []property{
		{"custom.lineStyle", options{"fill": "dash", "dash": []int{10, 10}}}, {"custom.fillOpacity", 0},
	}}}
	return p
}
