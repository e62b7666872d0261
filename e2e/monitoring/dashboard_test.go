package monitoring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	published "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/heatmap"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	grafanatable "github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

const dashboardFile = root + "/manifests/components/monitoring/dashboard.json"

// TestDashboard_holds reads the dashboard with Grafana's published types, and checks every panel and variable against the conventions and
// every query against the exported series. It also shows that it finds each kind of mistake.
func TestDashboard_holds(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	families := available(t)
	for _, fault := range faults(body, families) {
		t.Error(fault)
	}
	for _, row := range []struct{ mistake, right, wrong string }{
		{"a field that dashboards do not have", `"graphTooltip":`, `"graphTip": 1, "graphTooltip":`},
		{"a field that panels do not have", `"gridPos":`, `"gridPlace": {}, "gridPos":`},
		{"an option that the kind of panel does not have", `"colorMode":`, `"colourMode": "value", "colorMode":`},
		{"a drawing setting that the kind of panel does not have", `"drawStyle":`, `"drawWith": "ink", "drawStyle":`},
		{"a field that the units' settings do not have", `"noValue":`, `"nothing": "", "noValue":`},
		{"a field that queries do not have", `"legendFormat":`, `"legend": "", "legendFormat":`},
		{"a value of the wrong kind", `"refId": "A"`, `"refId": 1`},
		{"a field that is missing", `"orientation": "auto",`, ``},
		{"an address that bookmarks do not have", `"uid": "cnpg-scale-to-zero"`, `"uid": "another"`},
		{"a variable that is missing", `"name": "cpuPrice"`, `"name": "price"`},
		{"a variable whose data source is fixed", `"uid": "$datasource"`, `"uid": "prometheus"`},
		{"a variable whose value for all matches only known values", `"allValue": ".*"`, `"allValue": ""`},
		{"a variable whose two queries differ", `"definition": "label_values(`, `"definition": "labels(`},
		{"a panel without a title", `"title": "Wake latency"`, `"title": ""`},
		{"two panels of one title", `"title": "Wake latency"`, `"title": "Wakes"`},
		{"a panel without a description", `"description": "Clusters that are hibernated now."`, `"description": ""`},
		{"two panels of one id", `"id": 7,`, `"id": 8,`},
		{"a panel over another", `"x": 21,`, `"x": 20,`},
		{"a panel outside of the grid", `"w": 24,`, `"w": 25,`},
		{"a row that is closed", `"collapsed": false`, `"collapsed": true`},
		{"a panel without a unit", `"unit": "none"`, `"unit": ""`},
		{"a number of what is not known", `"noValue": "unknown"`, `"noValue": "0"`},
		{"a curve without a name", `"legendFormat": "{{threshold}}"`, `"legendFormat": ""`},
		{"a curve that does not begin at zero", `"min": 0`, `"min": 1`},
		{"a number of a range of time", "\"instant\": true,\n          \"range\": false", "\"instant\": false,\n          \"range\": true"},
		{"a table whose column is not the one that is named", `"Value": "wakes"`, `"Value": "woken"`},
		{"a panel with options of its own", `"showPoints": "never"`, `"showPoints": "always"`},
		{"what Flux takes for a variable of its own", `$cpuPrice`, `${cpuPrice}`},
		{"a rate over the whole time", `[$__rate_interval]`, `[$__range]`},
		{"a query that is no expression", `"expr": "sum(`, `"expr": "sum((`},
		{"a query of every Kubernetes cluster", `{state=\"asleep\", k8s_cluster=~\"$k8sCluster\", `, `{state=\"asleep\", `},
		{"a query of every namespace", `namespace=~\"$namespace\", cluster=~\"$cluster\"}))"`, `cluster=~\"$cluster\"}))"`},
		{"a series that nobody exports", `sum(cnpg_scale_to_zero_held_connections{`, `sum(cnpg_scale_to_zero_connections{`},
		{"a label that the series has not", `{result=\"success\", `, `{outcome=\"success\", `},
		{"a value that the label never has", `{result=\"success\", `, `{result=\"succeeded\", `},
		{"a label that an aggregation keeps and nothing has", `by (le, phase)`, `by (le, part)`},
	} {
		changed := bytes.Replace(body, []byte(row.right), []byte(row.wrong), 1)
		if bytes.Equal(changed, body) {
			t.Errorf("%s: the dashboard has no %s", row.mistake, row.right)
		} else if len(faults(changed, families)) == 0 {
			t.Errorf("not found: %s", row.mistake)
		}
	}
}

// faults are everything that is wrong with a dashboard.
func faults(body []byte, families map[string]*family) []error {
	if found := againstSchema(body); len(found) != 0 {
		return found
	}
	var d grafana
	if err := json.Unmarshal(body, &d); err != nil {
		return []error{err}
	}
	found := append(d.againstConventions(), againstSeries(body, families)...)
	if d.UID != "cnpg-scale-to-zero" || !slices.Equal(d.Tags, []string{"cloudnativepg"}) {
		found = append(found, fmt.Errorf("the dashboard is %s with the tags %v", d.UID, d.Tags))
	}
	if bytes.Contains(body, []byte("${")) {
		found = append(found, fmt.Errorf("Flux replaces ${"))
	}
	return found
}

// register registers the dashboard's kinds of panels and queries with Grafana's types, which do not check those that are not registered.
var register = sync.OnceFunc(func() {
	runtime := cog.NewRuntime()
	runtime.RegisterDataqueryVariant(prometheus.VariantConfig())
	runtime.RegisterPanelcfgVariant(heatmap.VariantConfig())
	runtime.RegisterPanelcfgVariant(stat.VariantConfig())
	runtime.RegisterPanelcfgVariant(statetimeline.VariantConfig())
	runtime.RegisterPanelcfgVariant(grafanatable.VariantConfig())
	runtime.RegisterPanelcfgVariant(timeseries.VariantConfig())
})

// againstSchema is every way in which a dashboard does not follow Grafana's schema: a field that it does not have, of a panel
// type's own options too, a missing one, and a value that is not allowed.
func againstSchema(body []byte) []error {
	register()
	var faults []error
	note := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	var d published.Dashboard
	note(d.UnmarshalJSONStrict(body))
	note(d.Validate())
	// Of fieldConfig the types read only the panel type's own part strictly when they read a panel.
	var raw struct {
		Panels []struct {
			Type        string          `json:"type"`
			FieldConfig json.RawMessage `json:"fieldConfig"`
		} `json:"panels"`
	}
	note(json.Unmarshal(body, &raw))
	for _, p := range raw.Panels {
		if _, known := cog.ConfigForPanelcfgVariant(p.Type); !known && p.Type != "row" {
			note(fmt.Errorf("a panel is a %q, which is not registered", p.Type))
		}
		var source published.FieldConfigSource
		note(source.UnmarshalJSONStrict(p.FieldConfig))
	}
	return faults
}

// grafana is the part of a dashboard that the conventions are about.
type grafana struct {
	UID        string
	Tags       []string
	Panels     []panel
	Templating struct {
		List []struct {
			Name, Label, Type, Definition, AllValue string
			Query                                   any
			Datasource                              source
			Multi                                   bool
			Refresh                                 int
		}
	}
}

// source is a data source.
type source struct{ Type, UID string }

// chosen is the data source that people choose. It is named without braces, because Flux replaces what has them.
var chosen = source{"prometheus", "$datasource"}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Collapsed                bool
	Datasource               source
	Targets                  []struct {
		RefID, Expr, LegendFormat, Format string
		Datasource                        source
		Instant, Range                    bool
	}
	FieldConfig struct {
		Defaults struct {
			Unit, NoValue string
			Min           *float64
			Mappings      []any
			Custom        map[string]any
		}
		Overrides []struct {
			Matcher    struct{ ID, Options string }
			Properties []struct {
				ID    string
				Value any
			}
		}
	}
	Options         map[string]any
	Transformations []struct {
		Options struct{ RenameByName map[string]string }
	}
}

// againstConventions is every way in which panels and variables are not like the others.
func (d grafana) againstConventions() []error {
	var found []error
	var names []string
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
		query, _ := v.Query.(map[string]any)
		switch {
		case v.Label == "":
			found = append(found, fmt.Errorf("the variable %s has no label", v.Name))
		case v.Type == "query" && (v.Datasource != chosen || query["query"] != v.Definition || v.Refresh != 2):
			found = append(found, fmt.Errorf("the variable %s is not asked of %v whenever the time changes", v.Name, chosen))
		case v.Multi && v.AllValue != ".*":
			found = append(found, fmt.Errorf("all of the variable %s is %q", v.Name, v.AllValue))
		}
	}
	if want := []string{"datasource", "k8sCluster", "operatorNamespace", "namespace", "cluster", "detail", "top", "cpuPrice", "memoryPrice"}; !slices.Equal(names, want) {
		found = append(found, fmt.Errorf("the variables are %v, want %v", names, want))
	}
	ids, titles, taken, drawn := map[int]bool{}, map[string]bool{}, map[[2]int]bool{}, map[string]string{}
	for _, p := range d.Panels {
		faults := p.faults()
		if ids[p.ID] || titles[p.Title] || p.Title == "" {
			faults = append(faults, fmt.Sprintf("its id %d or title is another's, or it has none", p.ID))
		}
		ids[p.ID], titles[p.Title] = true, true
		const columns = 24 // of Grafana's grid
		if g := p.GridPos; g.W < 1 || g.X+g.W > columns {
			faults = append(faults, "it is outside of the grid")
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if taken[[2]int{x, y}] {
					faults = append(faults, fmt.Sprintf("it lies over another at %d, %d", x, y))
				}
				taken[[2]int{x, y}] = true
			}
		}
		if how := p.drawn(); drawn[p.Type] == "" {
			drawn[p.Type] = how
		} else if drawn[p.Type] != how {
			faults = append(faults, "it is drawn unlike the first of its kind: "+how)
		}
		for _, fault := range faults {
			found = append(found, fmt.Errorf("panel %q: %s", p.Title, fault))
		}
	}
	return found
}

// drawn is what all panels of a kind have alike; curves may be stacked, and each table is sorted by its own column.
func (p panel) drawn() string {
	options, custom := maps.Clone(p.Options), maps.Clone(p.FieldConfig.Defaults.Custom)
	delete(options, "sortBy")
	if custom["stacking"] != nil {
		delete(custom, "stacking")
		custom["fillOpacity"] = 10
	}
	body, _ := json.Marshal([]any{options, custom, p.FieldConfig.Defaults.NoValue, p.FieldConfig.Defaults.Min})
	return string(body)
}

// rateInterval is the time over which a curve's points look back.
const rateInterval = "[$__rate_interval]"

// faults are what is wrong with the panel alone.
func (p panel) faults() (found []string) {
	require := func(is bool, what string) {
		if !is {
			found = append(found, what)
		}
	}
	if p.Type == "row" {
		require(!p.Collapsed && len(p.Targets) == 0, "a row is open and asks for nothing")
		return found
	}
	require(p.Description != "", "it has no description")
	require(p.Datasource == chosen, "it has a data source of its own")
	require(len(p.Targets) != 0, "it asks for nothing")
	now := p.Type == "stat" || p.Type == "table"
	for i, target := range p.Targets {
		require(target.RefID == string(rune('A'+i)), "its queries are A, B and so on")
		require(target.Datasource == chosen, "a query has a data source of its own")
		require(target.Instant == now && target.Range != now, "a number or table is of one time, and others are of a range")
		require(strings.Join(strings.Fields(target.Expr), " ") == target.Expr, "an expression is one line")
		require(now || target.LegendFormat != "", "its series have no names")
		require(!now || !strings.Contains(target.Expr, rateInterval), "a number or table looks at the chosen time, not at a point")
		require(now || !strings.Contains(target.Expr, "$__range"), "a curve looks at a point, not at the chosen time")
	}
	field := p.FieldConfig
	switch p.Type {
	case "stat":
		require(field.Defaults.Unit != "", "it has no unit")
		require(field.Defaults.NoValue == "unknown", "what is not known is called so")
	case "timeseries":
		require(field.Defaults.Unit != "", "it has no unit")
		require(field.Defaults.Min != nil && *field.Defaults.Min == 0, "it does not begin at zero")
	case "state-timeline":
		require(len(field.Defaults.Mappings) != 0, "its values have no names")
	case "heatmap":
		axis, _ := p.Options["yAxis"].(map[string]any)
		require(axis["unit"] != nil && p.Targets[0].Format == "heatmap" && p.Targets[0].LegendFormat == "{{le}}", "it has no unit or no buckets")
	case "table":
		ok := len(field.Overrides) == 1 && len(p.Transformations) == 1 && p.Targets[0].Format == "table"
		if ok {
			column := p.Transformations[0].Options.RenameByName["Value"]
			unit := field.Overrides[0].Properties[0]
			sort, _ := json.Marshal(p.Options["sortBy"])
			ok = column != "" && field.Overrides[0].Matcher.Options == column && unit.ID == "unit" && unit.Value != "" &&
				string(sort) == fmt.Sprintf(`[{"desc":true,"displayName":%q}]`, column)
		}
		require(ok, "its values are not one column that has a name, a unit and the order of the rows")
	}
	return found
}

// againstSeries is every way in which the queries ask for what nobody exports, or for what was not chosen.
func againstSeries(body []byte, families map[string]*family) []error {
	var s Shipped
	if err := json.Unmarshal(body, &s.dashboard); err != nil {
		return []error{err}
	}
	queries, err := s.Queries()
	if err != nil {
		return []error{err}
	}
	var found []error
	for _, query := range queries {
		found = append(found, asksForWhatIsExported(query.Where, s.Fill(query.Text, nil), families)...)
		if strings.HasPrefix(query.Where, "variable ") {
			continue
		}
		expression, err := parser.ParseExpr(s.Fill(query.Text, map[string]string{
			"k8sCluster": "$k8sCluster", "namespace": "$namespace", "operatorNamespace": "$operatorNamespace",
		}))
		if err != nil {
			continue // and reported above
		}
		parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
			if selector, ok := node.(*parser.VectorSelector); ok &&
				(!has(selector, kubernetesCluster, `^\$k8sCluster$`) || !has(selector, "namespace", `^\$(operatorN|n)amespace$`)) {
				found = append(found, fmt.Errorf("%s: %s is not of the chosen Kubernetes clusters and namespaces", query.Where, selector))
			}
			return nil
		})
	}
	return found
}

// has reports whether a selector matches a label by a pattern that looks so.
func has(selector *parser.VectorSelector, label, pattern string) bool {
	return slices.ContainsFunc(selector.LabelMatchers, func(m *labels.Matcher) bool {
		return m.Name == label && m.Type == labels.MatchRegexp && regexp.MustCompile(pattern).MatchString(m.Value)
	})
}
