// Package picture draws panels of the dashboard, for a documentation that has no Grafana to be photographed: the queries are the
// dashboard's own, and the data a real Prometheus'.
package picture

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"time"

	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/cnpg-i/scale-to-zero/e2e/monitoring"
)

// Source is where the data comes from: a Prometheus, a time, and the dashboard's variables.
type Source struct {
	prometheusv1.API
	Range     prometheusv1.Range
	Variables map[string]string
}

// series is one of a panel's, by name.
type series struct {
	name   string
	labels model.Metric
	points []model.SamplePair
}

// last is its newest value.
func (s series) last() float64 { return float64(s.points[len(s.points)-1].Value) }

// ask gets a panel's series: of curves over the whole time, else at its end.
func (s Source) ask(ctx context.Context, p monitoring.Panel) ([]series, error) {
	var found []series
	for _, query := range p.Queries {
		text := monitoring.Fill(query.Text, s.Variables)
		var value model.Value
		var err error
		if overTime(p) {
			value, _, err = s.QueryRange(ctx, text, s.Range)
		} else {
			value, _, err = s.Query(ctx, text, s.Range.End)
		}
		if err != nil {
			return nil, fmt.Errorf("ask for %q: %w", p.Title, err)
		}
		switch all := value.(type) {
		case model.Matrix:
			for _, one := range all {
				found = append(found, series{legend(query.Legend, one.Metric), one.Metric, numbers(one.Values)})
			}
		case model.Vector:
			for _, one := range all {
				found = append(found, series{legend(query.Legend, one.Metric), one.Metric, numbers([]model.SamplePair{{Timestamp: one.Timestamp, Value: one.Value}})})
			}
		}
	}
	found = slices.DeleteFunc(found, func(s series) bool { return len(s.points) == 0 })
	if p.Kind == kindTable {
		slices.SortStableFunc(found, func(a, b series) int { return cmp.Compare(b.last(), a.last()) })
	}
	return found, nil
}

func numbers(points []model.SamplePair) []model.SamplePair {
	return slices.DeleteFunc(points, func(p model.SamplePair) bool { return math.IsNaN(float64(p.Value)) })
}

func overTime(p monitoring.Panel) bool { return p.Kind != kindStat && p.Kind != kindTable }

// label is how a legend names one.
var label = regexp.MustCompile(`\{\{(\w+)\}\}`)

func legend(format string, metric model.Metric) string {
	return label.ReplaceAllStringFunc(format, func(found string) string {
		return string(metric[model.LabelName(label.FindStringSubmatch(found)[1])])
	})
}

// along is where in the time that is drawn a point is, from 0 to 1.
func (s Source) along(at model.Time) float64 {
	return at.Time().Sub(s.Range.Start).Seconds() / s.Range.End.Sub(s.Range.Start).Seconds()
}

// marks are the times that an axis names.
func (s Source) marks() []time.Time {
	var marks []time.Time
	for at := s.Range.Start.Truncate(time.Minute).Add(time.Minute); at.Before(s.Range.End); at = at.Add(time.Minute) {
		marks = append(marks, at)
	}
	return marks
}
