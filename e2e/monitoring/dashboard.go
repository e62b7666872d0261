package monitoring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// source is the variable that names the data source.
var source = datasource{Type: "prometheus", UID: "${datasource}"}

// Dashboard makes the dashboard's JSON.
func Dashboard() ([]byte, error) {
	d := dashboard{
		UID: "cnpg-scale-to-zero", Title: "CloudNativePG scale to zero",
		Description: "Which clusters sleep, what keeps the others awake, how clients wake them, and what is saved.",
		Tags:        []string{"cloudnativepg"}, Editable: true, GraphTooltip: 1, SchemaVersion: 39, Refresh: "30s",
		Time: timeRange{"now-24h", "now"},
		Links: []link{{
			Title: "Related dashboards", Type: "dashboards", Icon: "external link", Tags: []string{"cloudnativepg"}, KeepTime: true,
		}},
		Templating: templating{variables()}, Panels: place(rows()),
	}
	d.Annotations.List = []any{}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(d); err != nil {
		return nil, fmt.Errorf("encode the dashboard: %w", err)
	}
	return out.Bytes(), nil
}

// variables have the names that CloudNativePG's dashboard has had. Clusters are found by the plugin's series, since those of
// CloudNativePG end when a cluster falls asleep.
func variables() []variable {
	query := func(name, label, description, query string, many bool) variable {
		v := variable{
			Name: name, Label: label, Description: description, Type: "query", Datasource: &source, Definition: query,
			Query: variableQuery{query, "PrometheusVariableQueryEditor-VariableQuery"}, Refresh: 2, Sort: 1, IncludeAll: many, Multi: many,
			Current: current{"", ""}, // the first that is found
		}
		if many {
			v.AllValue, v.Current = ".*", current{[]string{"All"}, []string{"$__all"}}
		}
		return v
	}
	return []variable{
		{Name: "datasource", Label: "Datasource", Type: "datasource", Query: "prometheus", Refresh: 1, Current: current{"default", "default"}},
		query("operatorNamespace", "Operator Namespace", "Namespace of the operator and the plugin",
			`label_values(cnpg_scale_to_zero_injections_total, namespace)`, false),
		query("namespace", "Database Namespace", "Namespace of the clusters", `label_values(cnpg_scale_to_zero_cluster_state, namespace)`, true),
		query("cluster", "Cluster", "", `label_values(cnpg_scale_to_zero_cluster_state{namespace=~"$namespace"}, cluster)`, true),
	}
}

// row is a heading with panels under it.
type row struct {
	title  string
	panels []panel
}

// columns is the width of Grafana's grid.
const columns = 24

// place numbers the panels and puts them side by side for as long as there is room.
func place(rows []row) []panel {
	var placed []panel
	y := 0
	for _, r := range rows {
		open, none := false, []panel{}
		placed = append(placed, panel{
			ID: len(placed) + 1, Type: "row", Title: r.title, GridPos: gridPos{H: 1, W: columns, Y: y}, Collapsed: &open, Panels: &none,
		})
		y++
		x, height := 0, 0
		for _, p := range r.panels {
			if x+p.GridPos.W > columns {
				x, y, height = 0, y+height, 0
			}
			p.ID, p.GridPos.X, p.GridPos.Y = len(placed)+1, x, y
			x, height = x+p.GridPos.W, max(height, p.GridPos.H)
			placed = append(placed, p)
		}
		y += height
	}
	return placed
}

// asked is an expression and what its series are called.
type asked struct{ legend, expression string }

// basic is what all panels have.
func basic(kind, title, description, unit string, width, height int, instant bool, queries []asked) panel {
	p := panel{
		Type: kind, Title: title, Description: description, GridPos: gridPos{W: width, H: height}, Datasource: &source,
		FieldConfig: &fieldConfig{Defaults: defaults{Unit: unit, Custom: options{}}, Overrides: []override{}},
	}
	for i, query := range queries {
		p.Targets = append(p.Targets, target{
			RefID: string(rune('A' + i)), Datasource: source, Expr: strings.Join(strings.Fields(query.expression), " "),
			LegendFormat: query.legend, Instant: instant, Range: !instant,
		})
	}
	return p
}

// figure shows one number, of the whole time that is looked at.
func figure(title, description, unit, expression string) panel {
	p := basic("stat", title, description, unit, 4, 4, true, []asked{{"", expression}})
	p.FieldConfig.Defaults.NoValue = "unknown"
	p.FieldConfig.Defaults.Color = &color{Mode: "fixed", FixedColor: "text"}
	p.Options = options{
		"colorMode": "value", "graphMode": "none", "justifyMode": "auto", "textMode": "value", "orientation": "auto",
		"reduceOptions": options{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
	}
	return p
}

// curve shows numbers over time.
func curve(title, description, unit string, queries ...asked) panel {
	p := basic("timeseries", title, description, unit, 12, 8, false, queries)
	zero := 0.0
	p.FieldConfig.Defaults.Min = &zero
	p.FieldConfig.Defaults.Custom = options{"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "spanNulls": false}
	p.Options = options{
		"legend":  options{"displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": []string{}},
		"tooltip": options{"mode": "multi", "sort": "desc"},
	}
	return p
}

// timeline shows states over time, one line for each series.
func timeline(title, description string, values map[string]result, query asked) panel {
	p := basic("state-timeline", title, description, "", columns, 10, false, []asked{query})
	p.FieldConfig.Defaults.Mappings = []mapping{{Type: "value", Options: values}}
	p.FieldConfig.Defaults.Color = &color{Mode: "fixed", FixedColor: "text"}
	p.FieldConfig.Defaults.Custom = options{"fillOpacity": 80, "lineWidth": 0}
	p.Options = options{
		"mergeValues": true, "showValue": "auto", "alignValue": "left", "rowHeight": 0.8,
		"legend":  options{"displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": []string{}},
		"tooltip": options{"mode": "single", "sort": "none"},
	}
	return p
}

// list shows one row for each series, as it is now; the value's column gets the name.
func list(title, description, unit, value, expression string) panel {
	p := basic("table", title, description, "", 12, 8, true, []asked{{"", expression}})
	p.Targets[0].Format = "table"
	p.Options = options{"showHeader": true, "cellHeight": "sm"}
	p.FieldConfig.Overrides = []override{{matcher{"byName", value}, []property{{"unit", unit}}}}
	p.Transform = []transform{{"organize", options{
		"excludeByName": options{"Time": true}, "renameByName": options{"Value": value}, "indexByName": options{},
	}}}
	return p
}
