package monitoring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
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
)

// register tells Grafana's types of the kinds of panels and queries that the dashboard has; what is not registered would be
// taken as it is.
var register = sync.OnceFunc(func() {
	runtime := cog.NewRuntime()
	runtime.RegisterDataqueryVariant(prometheus.VariantConfig())
	runtime.RegisterPanelcfgVariant(heatmap.VariantConfig())
	runtime.RegisterPanelcfgVariant(stat.VariantConfig())
	runtime.RegisterPanelcfgVariant(statetimeline.VariantConfig())
	runtime.RegisterPanelcfgVariant(grafanatable.VariantConfig())
	runtime.RegisterPanelcfgVariant(timeseries.VariantConfig())
})

// TestTheDashboardFollowsGrafanasSchema reads the dashboard with the types that Grafana publishes: a field that they do not
// have, of a panel type's own options too, a missing one, and a value that is not allowed are errors.
func TestTheDashboardFollowsGrafanasSchema(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range againstSchema(body) {
		t.Error(err)
	}
}

// againstSchema is every way in which a dashboard does not follow the schema.
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

// TestTheSchemaRefuses shows that each kind of mistake in a dashboard is found.
func TestTheSchemaRefuses(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ rule, right, wrong string }{
		{"a field that dashboards do not have", `"graphTooltip":`, `"graphTip": 1, "graphTooltip":`},
		{"a field that panels do not have", `"gridPos":`, `"gridPlace": {}, "gridPos":`},
		{"an option that the kind of panel does not have", `"colorMode":`, `"colourMode": "value", "colorMode":`},
		{"a drawing setting that the kind of panel does not have", `"drawStyle":`, `"drawWith": "ink", "drawStyle":`},
		{"a field that the units' settings do not have", `"noValue":`, `"nothing": "", "noValue":`},
		{"a field that queries do not have", `"legendFormat":`, `"legend": "", "legendFormat":`},
		{"a value of the wrong kind", `"refId": "A"`, `"refId": 1`},
		{"a field that is missing", `"orientation": "auto",`, ``},
	} {
		changed := bytes.Replace(body, []byte(row.right), []byte(row.wrong), 1)
		if bytes.Equal(changed, body) {
			t.Fatalf("%s: the dashboard has no %s", row.rule, row.right)
		}
		if len(againstSchema(changed)) == 0 {
			t.Errorf("not refused: %s", row.rule)
		}
	}
}
