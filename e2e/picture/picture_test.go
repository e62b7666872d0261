package picture

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"

	"github.com/cnpg-i/scale-to-zero/e2e/monitoring"
)

// What is no known name and no hexadecimal color would be drawn black.
func TestColorOf_knowsTheColorsOfTheDashboard(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, panel := range monitoring.Excerpt("Dozing", "Clusters by state", "State") {
		var colors []string
		for _, color := range panel.Colors {
			colors = append(colors, color)
		}
		for _, value := range panel.Values {
			colors = append(colors, value.Color)
		}
		for _, step := range panel.Steps {
			colors = append(colors, step.Color)
		}
		for _, color := range colors {
			if seen++; !strings.HasPrefix(colorOf(color), "#") {
				t.Errorf("%s: %q is unknown", panel.Title, color)
			}
		}
	}
	if seen == 0 {
		t.Error("the panels have no colors")
	}
}

func TestWritten_hasItsUnitAndFewDigits(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		value float64
		unit  string
		want  string
	}{
		{7, "none", "7"}, {1.5, "none", "1.5"}, {0.0163, "none", "0.0163"}, {12.3456, "none", "12.3"}, {1234, "none", "1234"},
		{0.4, "percentunit", "40 %"}, {2.25, "s", "2.25 s"}, {95, "s", "1m35s"},
	} {
		if got := written(row.value, row.unit); got != row.want {
			t.Errorf("%v %s is written %q, want %q", row.value, row.unit, got, row.want)
		}
	}
}

func TestCeiling_isNoLowerAndEasilyDivided(t *testing.T) {
	t.Parallel()
	for value, want := range map[float64]float64{0: 1, 0.3: 0.4, 1: 1, 5: 6, 9: 10, 100: 100, 130: 200} {
		if got := ceiling(value); got < want-1e-9 || got > want+1e-9 {
			t.Errorf("above %v is %v, want %v", value, got, want)
		}
	}
}

func TestUnbroken_endsAtAGap(t *testing.T) {
	t.Parallel()
	var points []model.SamplePair
	for _, at := range []int64{0, 2, 4, 20, 22} {
		points = append(points, model.SamplePair{Timestamp: model.TimeFromUnix(at)})
	}
	if parts := unbroken(points, 2*time.Second); len(parts) != 2 || len(parts[0]) != 3 || len(parts[1]) != 2 {
		t.Errorf("the parts are %v", parts)
	}
}

func TestStacked_addsThoseBefore(t *testing.T) {
	t.Parallel()
	one := func(value float64) []model.SamplePair {
		return []model.SamplePair{{Timestamp: 1, Value: model.SampleValue(value)}}
	}
	all := stacked([]series{{name: "a", points: one(2)}, {name: "b", points: one(3)}})
	if all[0].last() != 2 || all[1].last() != 5 {
		t.Errorf("stacked they are %v and %v", all[0].last(), all[1].last())
	}
}
