package monitoring

import (
	"slices"
	"testing"
)

func TestExcerpt_keepsThePanelsWithTheirHeadings(t *testing.T) {
	t.Parallel()
	var got []string
	for _, p := range Excerpt("Asleep", "Wake latency", "Never asleep, and why") {
		got = append(got, p.Kind+" "+p.Title)
	}
	want := []string{"row Fleet", "stat Asleep", "table Never asleep, and why", "row Waking", "timeseries Wake latency"}
	if !slices.Equal(got, want) {
		t.Errorf("the panels are %q, want %q", got, want)
	}
	never := Excerpt("Never asleep, and why")[1]
	if never.Column != "of the time" || never.Unit != "percentunit" || len(never.Steps) != 3 || never.X != 0 || never.Y != 1 {
		t.Errorf("the table is %+v", never)
	}
}
