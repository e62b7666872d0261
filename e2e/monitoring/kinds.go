package monitoring

import "strings"

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

// figure shows one number, of the whole time that is looked at. Without steps it has the text's color.
func figure(title, description, unit, expression string, steps ...threshold) panel {
	p := basic("stat", title, description, unit, 3, 4, true, []asked{{"", expression}})
	p.FieldConfig.Defaults.NoValue = "unknown"
	p.FieldConfig.Defaults.Color = &color{Mode: "fixed", FixedColor: "text"}
	if len(steps) != 0 {
		p.FieldConfig.Defaults.Color = &color{Mode: "thresholds"}
		p.FieldConfig.Defaults.Thresholds = &thresholds{"absolute", steps}
	}
	p.Options = options{
		"colorMode": "value", "graphMode": "none", "justifyMode": "auto", "textMode": "value", "orientation": "auto",
		"reduceOptions": options{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
	}
	return p
}

// narrow leaves room for one figure more in every three.
func narrow(p panel) panel {
	p.GridPos.W = 2
	return p
}

// step is the color of values from one on, and base that of those before the first step.
func step(from float64, color string) threshold { return threshold{color, &from} }
func base(color string) threshold               { return threshold{color, nil} }

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
	p := basic("state-timeline", title, description, "", 12, 8, false, []asked{query})
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

// heatMap shows how many values fell into each bucket of a histogram over time.
func heatMap(title, description, unit, expression string) panel {
	p := basic("heatmap", title, description, "", 12, 8, false, []asked{{"{{le}}", expression}})
	p.Targets[0].Format = "heatmap"
	p.Options = options{
		"calculate": false, "cellGap": 1, "showValue": "never",
		"color":   options{"mode": "scheme", "scheme": "Blues", "fill": "dark-blue", "exponent": 0.5, "steps": 32, "reverse": false},
		"yAxis":   options{"axisPlacement": "left", "unit": unit},
		"legend":  options{"show": true},
		"tooltip": options{"mode": "single", "yHistogram": true},
		// A bucket is named by its upper bound.
		"rowsFrame": options{"layout": "le"}, "exemplars": options{"color": "rgba(255,0,255,0.7)"},
	}
	return p
}

// list shows one row for each series, as it is now; the value's column gets the name and, with steps, colors.
func list(title, description, unit, value, expression string, steps ...threshold) panel {
	p := basic("table", title, description, "", 12, 8, true, []asked{{"", expression}})
	p.Targets[0].Format = "table"
	p.Options = options{"showHeader": true, "cellHeight": "sm", "sortBy": []options{{"displayName": value, "desc": true}}}
	properties := []property{{"unit", unit}}
	if len(steps) != 0 {
		properties = append(properties, property{"thresholds", thresholds{"absolute", steps}},
			property{"custom.cellOptions", options{"type": "color-text"}})
	}
	p.FieldConfig.Overrides = []override{{matcher{"byName", value}, properties}}
	p.Transform = []transform{{"organize", options{
		"excludeByName": options{"Time": true}, "renameByName": options{"Value": value}, "indexByName": options{},
	}}}
	return p
}
