package picture

import (
	"context"
	"fmt"
	"slices"

	"git.sr.ht/~sbinet/gg"
	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"

	"github.com/cnpg-i/scale-to-zero/e2e/monitoring"
)

// Kinds of panels that are drawn.
const (
	kindRow      = "row"
	kindStat     = "stat"
	kindCurve    = "timeseries"
	kindTimeline = "state-timeline"
	kindHeatMap  = "heatmap"
	kindTable    = "table"
)

// Sizes in pixels: of a cell of the grid, of the gap between panels, and of the heading.
const (
	cellWidth, cellHeight = 60, 28
	gap                   = 4
	heading               = 64
	columns               = 24
)

// note says what the picture is.
const note = "Drawn from the dashboard's own queries on a Prometheus that scraped a real cluster; not a screenshot of Grafana."

// Write draws the panels into a PNG file.
func Write(ctx context.Context, path string, panels []monitoring.Panel, source Source) error {
	height := 0
	for _, p := range panels {
		height = max(height, p.Y+p.H)
	}
	c, err := newCanvas(columns*cellWidth+gap, heading+height*cellHeight+gap)
	if err != nil {
		return err
	}
	c.text("CloudNativePG scale to zero", 14, 28, 20, ink, true)
	c.text(note, 14, 52, 13, faint, false)
	for _, p := range panels {
		box := rectangle{float64(p.X*cellWidth + gap), float64(heading + p.Y*cellHeight), float64(p.W*cellWidth - gap), float64(p.H*cellHeight - gap)}
		if p.Kind == kindRow {
			c.text(monitoring.Fill(p.Title, source.Variables), box.x+8, box.y+18, 15, ink, true)
			continue
		}
		all, err := source.ask(ctx, p)
		if err != nil {
			return err
		}
		c.fill(box, panelColor)
		c.text(p.Title, box.x+10, box.y+20, 14, ink, true)
		inner := rectangle{box.x + 10, box.y + 32, box.w - 20, box.h - 40}
		switch p.Kind {
		case kindStat:
			c.number(inner, p, all)
		case kindCurve:
			c.curves(inner, p, all, source)
		case kindTimeline:
			c.lanes(inner, p, all, source)
		case kindHeatMap:
			c.heat(inner, all, source)
		case kindTable:
			c.table(inner, p, all)
		default:
			return fmt.Errorf("draw %q: a panel of the kind %q is not known", p.Title, p.Kind)
		}
	}
	if err := c.SavePNG(path); err != nil {
		return fmt.Errorf("write the picture: %w", err)
	}
	return nil
}

// rectangle is a part of the picture.
type rectangle struct{ x, y, w, h float64 }

// Colors of everything that has none of its own.
const (
	background = "#111217"
	panelColor = "#1c1f26"
	ink        = "#d5d6de"
	faint      = "#8e919b"
	grid       = "#2c3038"
)

// palette are the colors of series, in their order.
var palette = [...]string{"#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#96d98d"}

// named are the dashboard's colors that have names.
var named = map[string]string{"green": "#56a64b", "yellow": "#e0b400", "blue": "#3274d9", "purple": "#a352cc", "red": "#e02f44", "text": ink}

func colorOf(name string) string {
	if hex := named[name]; hex != "" {
		return hex
	}
	return name
}

// stepColor is that of the last step at or below a value.
func stepColor(steps []monitoring.Step, value float64) string {
	color := ink
	for _, s := range steps {
		if s.From == nil || value >= *s.From {
			color = colorOf(s.Color)
		}
	}
	return color
}

// canvas is what is drawn on.
type canvas struct {
	*gg.Context
	fonts [2]*opentype.Font
	faces map[face]font.Face
}

// face is a font at a size.
type face struct {
	size float64
	bold bool
}

func newCanvas(width, height int) (*canvas, error) {
	c := &canvas{Context: gg.NewContext(width, height), faces: map[face]font.Face{}}
	for i, body := range [][]byte{goregular.TTF, gobold.TTF} {
		parsed, err := opentype.Parse(body)
		if err != nil {
			return nil, fmt.Errorf("read the font: %w", err)
		}
		c.fonts[i] = parsed
	}
	c.fill(rectangle{0, 0, float64(width), float64(height)}, background)
	return c, nil
}

func (c *canvas) fill(r rectangle, color string) {
	c.SetHexColor(color)
	c.DrawRectangle(r.x, r.y, r.w, r.h)
	c.Fill()
}

func (c *canvas) line(x1, y1, x2, y2, width float64, color string) {
	c.SetHexColor(color)
	c.SetLineWidth(width)
	c.DrawLine(x1, y1, x2, y2)
	c.Stroke()
}

// use chooses a font.
func (c *canvas) use(size float64, bold bool) {
	key := face{size, bold}
	if c.faces[key] == nil {
		of := c.fonts[0]
		if bold {
			of = c.fonts[1]
		}
		made, err := opentype.NewFace(of, &opentype.FaceOptions{Size: size, DPI: 72, Hinting: font.HintingFull})
		if err != nil {
			return // no font of a positive size fails
		}
		c.faces[key] = made
	}
	c.SetFontFace(c.faces[key])
}

// text is written to the right of a point of its base line.
func (c *canvas) text(s string, x, y, size float64, color string, bold bool) {
	c.use(size, bold)
	c.SetHexColor(color)
	c.DrawString(s, x, y)
}

// legend writes the names of series below a panel, each once, with their colors.
func (c *canvas) legend(r rectangle, names []string, color func(string) string) {
	x := r.x
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			continue
		}
		c.use(12, false)
		width, _ := c.MeasureString(name)
		if x+width+20 > r.x+r.w {
			break
		}
		c.fill(rectangle{x, r.y + r.h - 9, 12, 4}, color(name))
		c.text(name, x+17, r.y+r.h-2, 12, faint, false)
		x += width + 34
	}
}

// axis writes times below a plot, and lines above them.
func (c *canvas) axis(plot rectangle, source Source) {
	for _, mark := range source.marks() {
		x := plot.x + plot.w*mark.Sub(source.Range.Start).Seconds()/source.Range.End.Sub(source.Range.Start).Seconds()
		c.line(x, plot.y, x, plot.y+plot.h, 1, grid)
		c.use(11, false)
		c.SetHexColor(faint)
		c.DrawStringAnchored(mark.UTC().Format("15:04"), x, plot.y+plot.h+10, 0.5, 0.5)
	}
}
