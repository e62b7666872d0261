package monitoring

import (
	"maps"
	"slices"
	"strings"
)

// Names of the variables. Those of the namespaces and clusters are what CloudNativePG's dashboard has had.
const (
	variableDatasource = "datasource"
	variableKubernetes = "k8sCluster"
	variableOperator   = "operatorNamespace"
	variableNamespace  = "namespace"
	variableCluster    = "cluster"
	variableDetail     = "detail"
	variableTop        = "top"
	variableCPU        = "cpuPrice"
	variableMemory     = "memoryPrice"
)

// variables of the dashboard. Clusters are found by the plugin's series, since those of CloudNativePG end when a cluster falls
// asleep.
func variables() []variable {
	return []variable{
		{Name: variableDatasource, Label: "Datasource", Type: "datasource", Query: "prometheus", Refresh: 1, Current: current{"default", "default"}},
		queried(variableKubernetes, "Kubernetes cluster", "The label k8s_cluster, where one Prometheus has several",
			`label_values(cnpg_scale_to_zero_cluster_state, k8s_cluster)`, true),
		queried(variableOperator, "Operator namespace", "Namespace of the operator and the plugin",
			`label_values(cnpg_scale_to_zero_injections_total{k8s_cluster=~"$k8sCluster"}, namespace)`, true),
		queried(variableNamespace, "Database namespace", "Namespace of the clusters",
			`label_values(cnpg_scale_to_zero_cluster_state{k8s_cluster=~"$k8sCluster"}, namespace)`, true),
		queried(variableCluster, "Clusters", "Those that the fleet's panels are about",
			`label_values(cnpg_scale_to_zero_cluster_state{k8s_cluster=~"$k8sCluster", namespace=~"$namespace"}, cluster)`, true),
		queried(variableDetail, "One cluster", "The one that the panels of a single cluster are about",
			`label_values(cnpg_scale_to_zero_cluster_state{`+of+`}, cluster)`, false),
		typed(variableTop, "Rows", "How many clusters the lists have", "10"),
		typed(variableCPU, "Price of a CPU-hour", "In any currency", "0.03"),
		typed(variableMemory, "Price of a GiB-hour", "In the same currency", "0.004"),
	}
}

// queried is a variable with the values of a label: one of them, the first that is found, or several, at first all.
func queried(name, label, description, query string, many bool) variable {
	v := variable{
		Name: name, Label: label, Description: description, Type: "query", Datasource: &source, Definition: query,
		Query: variableQuery{query, "PrometheusVariableQueryEditor-VariableQuery"}, Refresh: 2, Sort: 1, IncludeAll: many, Multi: many,
		Current: current{"", ""},
	}
	if many {
		v.AllValue, v.Current = ".*", current{[]string{"All"}, []string{"$__all"}}
	}
	return v
}

// typed is a variable that people type in.
func typed(name, label, description, otherwise string) variable {
	return variable{Name: name, Label: label, Description: description, Type: "textbox", Query: otherwise, Current: current{otherwise, otherwise}}
}

// Fill puts the values of variables into an expression, as Grafana does. Those that are not given have the value that they have
// at first, and one cluster is any.
func Fill(expression string, values map[string]string) string {
	all := map[string]string{"__range": "1d", "__rate_interval": "5m", variableDetail: ".*"}
	for _, v := range variables() {
		switch at := v.Current.Value.(type) {
		case []string:
			all[v.Name] = v.AllValue
		case string:
			if v.Type == "textbox" {
				all[v.Name] = at
			}
		}
	}
	maps.Copy(all, values)
	// The longest first: the name of one may begin with another's.
	names := slices.SortedFunc(maps.Keys(all), func(a, b string) int { return len(b) - len(a) })
	pairs := make([]string, 0, 2*len(names))
	for _, name := range names {
		pairs = append(pairs, "$"+name, all[name])
	}
	return strings.NewReplacer(pairs...).Replace(expression)
}
