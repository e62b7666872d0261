package picture

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/common/model"

	"github.com/cnpg-i/scale-to-zero/e2e/monitoring"
)

// number draws one, in the middle.
func (c *canvas) number(r rectangle, p monitoring.Panel, all []series) {
	text, color := "unknown", faint
	if len(all) != 0 {
		text, color = written(all[0].last(), p.Unit), stepColor(p.Steps, all[0].last())
	}
	c.use(30, true)
	c.SetHexColor(color)
	c.DrawStringAnchored(text, r.x+r.w/2, r.y+r.h/2, 0.5, 0.4)
}

// curves draws lines, or what is below them where they are stacked.
func (c *canvas) curves(r rectangle, p monitoring.Panel, all []series, source Source) {
	plot := rectangle{r.x + 44, r.y, r.w - 48, r.h - 38}
	if p.Stacked {
		all = stacked(all)
	}
	most := 0.0
	for _, s := range all {
		for _, point := range s.points {
			most = max(most, float64(point.Value))
		}
	}
	most = ceiling(most)
	c.axis(plot, source)
	for i := range 5 {
		y := plot.y + plot.h*float64(i)/4
		c.line(plot.x, y, plot.x+plot.w, y, 1, grid)
		c.use(11, false)
		c.SetHexColor(faint)
		c.DrawStringAnchored(written(most*float64(4-i)/4, p.Unit), plot.x-6, y, 1, 0.4)
	}
	colors := func(name string) string {
		if color := p.Colors[name]; color != "" {
			return colorOf(color)
		}
		at := slices.IndexFunc(all, func(s series) bool { return s.name == name })
		return palette[at%len(palette)]
	}
	names := make([]string, 0, len(all))
	for _, s := range all {
		names = append(names, s.name)
	}
	for i := range all { // of what is stacked the highest is drawn first
		s := all[len(all)-1-i]
		c.curve(plot, s, most, p.Stacked, colors(s.name), source)
	}
	c.legend(r, names, colors)
}

func (c *canvas) curve(plot rectangle, s series, most float64, filled bool, color string, source Source) {
	at := func(point model.SamplePair) (x, y float64) {
		return plot.x + plot.w*source.along(point.Timestamp), plot.y + plot.h*(1-float64(point.Value)/most)
	}
	for _, part := range unbroken(s.points, source.Range.Step) {
		for _, point := range part {
			c.LineTo(at(point))
		}
		if filled {
			first, _ := at(part[0])
			last, _ := at(part[len(part)-1])
			c.LineTo(last, plot.y+plot.h)
			c.LineTo(first, plot.y+plot.h)
			c.ClosePath()
			c.SetHexColor(color)
			c.Fill()
			continue
		}
		c.SetHexColor(color)
		c.SetLineWidth(1.8)
		c.Stroke()
	}
}

// stacked adds to each series those before it.
func stacked(all []series) []series {
	sums := map[model.Time]model.SampleValue{}
	var added []series
	for _, s := range all {
		sum := series{name: s.name}
		for _, point := range s.points {
			sums[point.Timestamp] += point.Value
			sum.points = append(sum.points, model.SamplePair{Timestamp: point.Timestamp, Value: sums[point.Timestamp]})
		}
		added = append(added, sum)
	}
	return added
}

// unbroken are the parts of points without a gap of some steps.
func unbroken(points []model.SamplePair, step time.Duration) [][]model.SamplePair {
	var parts [][]model.SamplePair
	for i, point := range points {
		if i == 0 || point.Timestamp.Sub(points[i-1].Timestamp) > 3*step {
			parts = append(parts, nil)
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], point)
	}
	return parts
}

// lanes draws a line of states for each series.
func (c *canvas) lanes(r rectangle, p monitoring.Panel, all []series, source Source) {
	const label = 130
	plot := rectangle{r.x + label, r.y, r.w - label - 4, r.h - 20}
	c.axis(plot, source)
	height := math.Min(46, plot.h/float64(max(len(all), 1)))
	width := plot.w * source.Range.Step.Seconds() / source.Range.End.Sub(source.Range.Start).Seconds()
	for i, s := range all {
		y := plot.y + float64(i)*height
		c.text(s.name, r.x, y+height/2+4, 12, faint, false)
		for from := 0; from < len(s.points); {
			to := from
			for to+1 < len(s.points) && s.points[to+1].Value == s.points[from].Value && s.points[to+1].Timestamp.Sub(s.points[to].Timestamp) <= 3*source.Range.Step {
				to++
			}
			is := p.Values[strconv.Itoa(int(s.points[from].Value))]
			left, right := source.along(s.points[from].Timestamp), source.along(s.points[to].Timestamp)
			lane := rectangle{plot.x + plot.w*left, y + 3, plot.w*(right-left) + width, height - 6}
			lane.w = math.Min(lane.w, plot.x+plot.w-lane.x)
			c.fill(lane, colorOf(is.Color))
			c.use(12, false)
			if needs, _ := c.MeasureString(is.Text); needs+8 < lane.w {
				c.text(is.Text, lane.x+4, y+height/2+4, 12, "#ffffff", false)
			}
			from = to + 1
		}
	}
}

// heat draws how many values fell into each bucket, of buckets that count what is below their bound, a while at a time.
func (c *canvas) heat(r rectangle, all []series, source Source) {
	const whiles = 24
	plot := rectangle{r.x + 44, r.y, r.w - 48, r.h - 20}
	c.axis(plot, source)
	slices.SortFunc(all, func(a, b series) int { return int(math.Copysign(1, bound(a)-bound(b))) })
	counts := make([][whiles]float64, len(all))
	first, last, most := len(all), 0, 0.0
	for i, s := range all {
		for _, point := range s.points {
			in := min(int(source.along(point.Timestamp)*whiles), whiles-1)
			counts[i][in] = max(counts[i][in], float64(point.Value))
		}
	}
	for i := len(counts) - 1; i > 0; i-- {
		for at := range whiles {
			counts[i][at] = max(counts[i][at]-counts[i-1][at], 0)
			if counts[i][at] > 0.1 {
				first, last, most = min(first, i), max(last, i), max(most, counts[i][at])
			}
		}
	}
	first, last = max(first-2, 0), min(last+2, len(all)-1)
	height := plot.h / float64(max(last-first+1, 1))
	for i := first; i <= last; i++ {
		y := plot.y + plot.h - float64(i-first+1)*height
		c.use(11, false)
		c.SetHexColor(faint)
		c.DrawStringAnchored(written(bound(all[i]), "s"), plot.x-6, y+height/2, 1, 0.4)
		for at, count := range counts[i] {
			if count > 0.1 {
				c.SetRGBA(0.34, 0.58, 0.95, 0.25+0.75*count/most)
				c.DrawRectangle(plot.x+plot.w*float64(at)/whiles+1, y+1, plot.w/whiles-2, height-2)
				c.Fill()
			}
		}
	}
}

// bound is the upper one of a bucket.
func bound(s series) float64 {
	value, err := strconv.ParseFloat(string(s.labels["le"]), 64)
	if err != nil {
		return math.Inf(1)
	}
	return value
}

// table draws a row for each series: its labels, and the value.
func (c *canvas) table(r rectangle, p monitoring.Panel, all []series) {
	var names []string
	for _, s := range all {
		for name := range s.labels {
			if !slices.Contains(names, string(name)) {
				names = append(names, string(name))
			}
		}
	}
	slices.Sort(names)
	column := r.w / float64(len(names)+1)
	for i, name := range append(names, p.Column) {
		c.text(name, r.x+float64(i)*column, r.y+12, 12, "#6e9fff", true)
	}
	const height = 25
	for i, s := range all {
		y := r.y + 38 + float64(i)*height
		if y > r.y+r.h {
			return
		}
		c.line(r.x, y-17, r.x+r.w, y-17, 1, grid)
		for j, name := range names {
			c.text(string(s.labels[model.LabelName(name)]), r.x+float64(j)*column, y, 13, ink, false)
		}
		c.text(written(s.last(), p.Unit), r.x+float64(len(names))*column, y, 13, stepColor(p.Steps, s.last()), true)
	}
}
