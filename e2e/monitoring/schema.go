// Package monitoring makes the Grafana dashboard, and its tests hold the dashboard, the alerts and docs/monitoring.md against what the
// two programs export.
package monitoring

// The types are the part of Grafana's dashboard schema that the dashboard uses, by the names of its JSON. A test reads what
// they make with those that Grafana publishes (grafana-foundation-sdk), which are generated for every field that there is and
// say little to a reader.

type dashboard struct {
	UID           string     `json:"uid"`
	Title         string     `json:"title"`
	Description   string     `json:"description"`
	Tags          []string   `json:"tags"`
	Editable      bool       `json:"editable"`
	GraphTooltip  int        `json:"graphTooltip"`
	SchemaVersion int        `json:"schemaVersion"`
	Refresh       string     `json:"refresh"`
	Time          timeRange  `json:"time"`
	Timezone      string     `json:"timezone"`
	Links         []link     `json:"links"`
	Templating    templating `json:"templating"`
	Annotations   struct {
		List []any `json:"list"`
	} `json:"annotations"`
	Panels []panel `json:"panels"`
}

type timeRange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

type link struct {
	Title       string   `json:"title"`
	Type        string   `json:"type"`
	Icon        string   `json:"icon"`
	Tooltip     string   `json:"tooltip"`
	Tags        []string `json:"tags"`
	URL         string   `json:"url"`
	AsDropdown  bool     `json:"asDropdown"`
	IncludeVars bool     `json:"includeVars"`
	KeepTime    bool     `json:"keepTime"`
	TargetBlank bool     `json:"targetBlank"`
}

type templating struct {
	List []variable `json:"list"`
}

type variable struct {
	Name        string      `json:"name"`
	Label       string      `json:"label"`
	Description string      `json:"description,omitempty"`
	Type        string      `json:"type"`
	Datasource  *datasource `json:"datasource,omitempty"`
	Query       any         `json:"query"`
	Definition  string      `json:"definition,omitempty"`
	Refresh     int         `json:"refresh"`
	Sort        int         `json:"sort"`
	IncludeAll  bool        `json:"includeAll"`
	Multi       bool        `json:"multi"`
	AllValue    string      `json:"allValue,omitempty"`
	Current     current     `json:"current"`
}

type variableQuery struct {
	Query string `json:"query"`
	RefID string `json:"refId"`
}

type current struct {
	Text  any `json:"text"`
	Value any `json:"value"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type panel struct {
	ID          int          `json:"id"`
	Type        string       `json:"type"`
	Title       string       `json:"title"`
	Description string       `json:"description,omitempty"`
	GridPos     gridPos      `json:"gridPos"`
	Datasource  *datasource  `json:"datasource,omitempty"`
	Targets     []target     `json:"targets,omitempty"`
	FieldConfig *fieldConfig `json:"fieldConfig,omitempty"`
	Options     options      `json:"options,omitempty"`
	Transform   []transform  `json:"transformations,omitempty"`
	Collapsed   *bool        `json:"collapsed,omitempty"` // of rows
	Panels      *[]panel     `json:"panels,omitempty"`    // of rows
}

type gridPos struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

type target struct {
	RefID        string     `json:"refId"`
	Datasource   datasource `json:"datasource"`
	Expr         string     `json:"expr"`
	LegendFormat string     `json:"legendFormat"`
	Instant      bool       `json:"instant"`
	Range        bool       `json:"range"`
	Format       string     `json:"format,omitempty"`
}

type fieldConfig struct {
	Defaults  defaults   `json:"defaults"`
	Overrides []override `json:"overrides"`
}

type defaults struct {
	Unit       string      `json:"unit,omitempty"`
	Decimals   *int        `json:"decimals,omitempty"`
	Min        *float64    `json:"min,omitempty"`
	Max        *float64    `json:"max,omitempty"`
	Mappings   []mapping   `json:"mappings,omitempty"`
	Thresholds *thresholds `json:"thresholds,omitempty"`
	Color      *color      `json:"color,omitempty"`
	Custom     options     `json:"custom,omitempty"`
	NoValue    string      `json:"noValue,omitempty"`
}

type thresholds struct {
	Mode  string      `json:"mode"`
	Steps []threshold `json:"steps"`
}

// threshold is the color of values from Value on; of the first step it is null.
type threshold struct {
	Color string   `json:"color"`
	Value *float64 `json:"value"`
}

type color struct {
	Mode       string `json:"mode"`
	FixedColor string `json:"fixedColor,omitempty"`
}

type mapping struct {
	Type    string            `json:"type"`
	Options map[string]result `json:"options"`
}

type result struct {
	Text  string `json:"text"`
	Color string `json:"color"`
	Index int    `json:"index"`
}

type override struct {
	Matcher    matcher    `json:"matcher"`
	Properties []property `json:"properties"`
}

type matcher struct {
	ID      string `json:"id"`
	Options string `json:"options"`
}

type property struct {
	ID    string `json:"id"`
	Value any    `json:"value"`
}

type transform struct {
	ID      string  `json:"id"`
	Options options `json:"options"`
}

// options are a panel type's own.
type options map[string]any
