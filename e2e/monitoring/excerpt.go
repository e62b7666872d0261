package monitoring

import "slices"

// Panel is what is drawn of a panel of the dashboard.
type Panel struct {
	// Kind is Grafana's, Unit too.
	Kind, Title, Unit string
	// X, Y, W and H are on a grid of 24 columns.
	X, Y, W, H int
	// Queries are what it asks; of a table or a number the values of one time.
	Queries []PanelQuery
	// Values are the texts and colors of single values, Colors those of series by name, and Steps those of values from one on.
	Values map[string]Value
	Colors map[string]string
	Steps  []Step
	// Column is the name of a table's values, Stacked says that curves are added up.
	Column  string
	Stacked bool
}

// PanelQuery is an expression with Grafana's variables in it, and what its series are called.
type PanelQuery struct{ Legend, Text string }

// Value is how a value is shown.
type Value struct{ Text, Color string }

// Step is the color of values from From on; nil: of all.
type Step struct {
	From  *float64
	Color string
}

// Excerpt are some panels of the dashboard, by title, with the headings of their rows.
func Excerpt(titles ...string) []Panel {
	var chosen []row
	for _, r := range rows() {
		r.panels = slices.DeleteFunc(r.panels, func(p panel) bool { return !slices.Contains(titles, p.Title) })
		if len(r.panels) != 0 {
			chosen = append(chosen, r)
		}
	}
	var panels []Panel
	for _, p := range place(chosen) {
		panels = append(panels, shown(p))
	}
	return panels
}

func shown(p panel) Panel {
	s := Panel{Kind: p.Type, Title: p.Title, X: p.GridPos.X, Y: p.GridPos.Y, W: p.GridPos.W, H: p.GridPos.H, Values: map[string]Value{}, Colors: map[string]string{}}
	for _, query := range p.Targets {
		s.Queries = append(s.Queries, PanelQuery{query.LegendFormat, query.Expr})
	}
	if p.FieldConfig == nil {
		return s
	}
	field := p.FieldConfig.Defaults
	s.Unit, s.Stacked = field.Unit, field.Custom["stacking"] != nil
	for _, m := range field.Mappings {
		for value, is := range m.Options {
			s.Values[value] = Value{is.Text, is.Color}
		}
	}
	s.Steps = stepsOf(field.Thresholds)
	for _, o := range p.FieldConfig.Overrides {
		for _, property := range o.Properties {
			switch value := property.Value.(type) {
			case color:
				s.Colors[o.Matcher.Options] = value.FixedColor
			case thresholds:
				s.Steps = stepsOf(&value)
			case string:
				s.Unit, s.Column = value, o.Matcher.Options
			}
		}
	}
	return s
}

func stepsOf(from *thresholds) []Step {
	if from == nil {
		return nil
	}
	var steps []Step
	for _, s := range from.Steps {
		steps = append(steps, Step{s.Value, s.Color})
	}
	return steps
}
