package monitoring

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// source is the variable that names the data source. Without braces, since Flux would put its own variables into what has them.
var source = datasource{Type: "prometheus", UID: "$datasource"}

// documentation is the page of the alerts and the metrics.
const documentation = "https://github.com/cnpg-i/scale-to-zero/blob/main/docs/monitoring.md"

// Dashboard makes the dashboard's JSON.
func Dashboard() ([]byte, error) {
	d := dashboard{
		UID: "cnpg-scale-to-zero", Title: "CloudNativePG scale to zero",
		Description: "Which clusters sleep, what keeps the others awake, how clients wake them, and what is saved.",
		Tags:        []string{"cloudnativepg"}, Editable: true, GraphTooltip: 1, SchemaVersion: 39, Refresh: "30s",
		Time: timeRange{"now-24h", "now"},
		Links: []link{
			{Title: "Related dashboards", Type: "dashboards", Icon: "external link", Tags: []string{"cloudnativepg"}, AsDropdown: true, IncludeVars: true, KeepTime: true},
			{Title: "Runbooks", Type: "link", Icon: "doc", Tags: []string{}, URL: documentation, Tooltip: "What each alert means and what to do", TargetBlank: true},
		},
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
