package report

import (
	"errors"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

var (
	ours   = color.RGBA{R: 0x1f, G: 0x6f, B: 0xb4, A: 0xff}
	theirs = color.RGBA{R: 0xb0, G: 0xb4, B: 0xba, A: 0xff}
	pale   = color.RGBA{R: 0xe4, G: 0xe6, B: 0xea, A: 0xff}
	// one for each curve
	palette = []color.Color{ours, color.RGBA{R: 0xd0, G: 0x5a, B: 0x1e, A: 0xff}, color.RGBA{R: 0x2e, G: 0x8b, B: 0x57, A: 0xff},
		color.RGBA{R: 0x8e, G: 0x44, B: 0xad, A: 0xff}, color.RGBA{R: 0xb8, G: 0x86, B: 0x0b, A: 0xff}, color.RGBA{R: 0x55, G: 0x5b, B: 0x66, A: 0xff}}
)

// Draw writes a picture of each workload, and one of the curves, into a directory.
func (r *Report) Draw(directory string) error {
	for _, p := range []struct {
		file, workload, metric, title, unit string
	}{
		{"w1-8", Burst8, PerSecond, "W1: jobs that do nothing, 8 side by side", "jobs per second"},
		{"w1-32", Burst32, PerSecond, "W1: jobs that do nothing, 32 side by side", "jobs per second"},
		{"w2", Pickup, P50, "W2: from a job's commit to its handler", "milliseconds, p50 and p99"},
		{"w3", FlowRate, PerSecond, "W3: figure 2, as fast as possible", "instances per second"},
		{"w3-time", FlowTime, P50, "W3: figure 2, from start to end at 10 per second", "milliseconds, p50 and p99"},
		{"writers", Writers, PerSecond, "Writers, 32 clients", "transactions per second"},
	} {
		bars := r.Of(p.workload, p.metric)
		if len(bars) == 0 {
			continue
		}
		var beyond []*Series
		if p.metric == P50 {
			beyond = r.Of(p.workload, P99)
		}
		if err := drawBars(filepath.Join(directory, "bench-"+p.file+".svg"), p.title, p.unit, bars, beyond); err != nil {
			return fmt.Errorf("drawing %s: %w", p.file, err)
		}
	}
	return r.drawCurves(filepath.Join(directory, "bench-growth.svg"))
}

func newPlot(title string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	for _, f := range []*font.Font{&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font,
		&p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font} {
		f.Variant = "Sans"
	}
	p.Title.Padding = vg.Points(8)
	p.Title.TextStyle.Font.Size = vg.Points(13)
	return p
}

// drawBars draws a bar for each system, the best on top, with its figure behind it; behind
// them, paler, those of another metric.
func drawBars(path, title, unit string, bars, beyond []*Series) error {
	best := 1.
	if len(beyond) > 0 {
		best = -1 // less is better
	}
	bars = slices.Clone(bars)
	slices.SortStableFunc(bars, func(a, b *Series) int {
		switch d := (a.Median() - b.Median()) * best; {
		case d < 0:
			return -1
		case d > 0:
			return 1
		}
		return 0
	})
	p := newPlot(title)
	p.X.Label.Text = unit
	p.X.Min = 0
	p.HideY()
	names := make([]string, len(bars))
	labels := plotter.XYLabels{}
	most := 0.
	for i, b := range bars {
		names[i] = b.System
		text, end := number(b.Median()), b.Median()
		for _, s := range beyond {
			if s.System == b.System {
				text += " / " + number(s.Median())
				end = max(end, s.Median())
				if err := addBar(p, i, s.Median(), pale); err != nil {
					return err
				}
			}
		}
		fill := color.Color(theirs)
		if strings.HasPrefix(b.System, "wed_") {
			fill = ours
		}
		if err := addBar(p, i, b.Median(), fill); err != nil {
			return err
		}
		labels.XYs = append(labels.XYs, plotter.XY{X: end, Y: float64(i)})
		labels.Labels = append(labels.Labels, text)
		most = max(most, end)
	}
	texts, err := plotter.NewLabels(labels)
	if err != nil {
		return err
	}
	texts.Offset.X = vg.Points(5)
	for i := range texts.TextStyle {
		texts.TextStyle[i].Font.Variant = "Sans"
		texts.TextStyle[i].Font.Size = vg.Points(10)
		texts.TextStyle[i].YAlign = -0.5
	}
	p.Add(texts)
	p.NominalY(names...)
	p.X.Max = most * 1.25
	p.X.Tick.Marker = ticks{}
	return save(p, vg.Points(float64(80+26*len(bars))), path)
}

// save leaves a margin: the fonts that the picture is shown with are not always as wide as those it is drawn with.
func save(p *plot.Plot, height vg.Length, path string) error {
	const width, margin = 580, 10
	picture := vgsvg.New(width, height)
	c := draw.New(picture)
	c.FillPolygon(color.White, []vg.Point{{}, {X: width}, {X: width, Y: height}, {Y: height}}) // readable on a dark page, too
	p.BackgroundColor = nil
	p.Draw(draw.Crop(c, 2*margin, -margin, margin, -margin))
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = picture.WriteTo(file)
	return errors.Join(err, file.Close())
}

func addBar(p *plot.Plot, at int, value float64, fill color.Color) error {
	bar, err := plotter.NewBarChart(plotter.Values{value}, vg.Points(16))
	if err != nil {
		return err
	}
	bar.Horizontal = true
	bar.XMin = float64(at)
	bar.Color = fill
	bar.LineStyle.Width = 0
	p.Add(bar)
	return nil
}

// ticks has the default ones, with separators of thousands.
type ticks struct{}

func (ticks) Ticks(least, most float64) []plot.Tick {
	of := plot.DefaultTicks{}.Ticks(least, most)
	for i, t := range of {
		if t.Label != "" && t.Value >= 1000 {
			of[i].Label = number(t.Value)
		}
	}
	return of
}

// powers of ten, as numbers.
type powers struct{}

func (powers) Ticks(least, most float64) []plot.Tick {
	of := plot.LogTicks{Prec: -1}.Ticks(least, most)
	for i, t := range of {
		if t.Label != "" {
			of[i].Label = whole(t.Value)
		}
	}
	return of
}

// drawCurves draws what a state costs, over the least on its curve.
func (r *Report) drawCurves(path string) error {
	p := newPlot("What a state costs, as things grow")
	p.X.Label.Text, p.Y.Label.Text = "how many", "times the least"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, powers{}
	p.Legend.Top, p.Legend.Left = true, true
	p.Y.Min = 0
	drawn := 0
	for i, name := range Curves {
		points := r.Curve(name, "wed_sql", MicrosPer)
		if len(points) < 2 {
			continue
		}
		least := points[0].Median()
		for _, q := range points {
			least = min(least, q.Median())
		}
		var xys plotter.XYs
		for _, q := range points {
			xys = append(xys, plotter.XY{X: q.X, Y: q.Median() / least})
		}
		line, dots, err := plotter.NewLinePoints(xys)
		if err != nil {
			return err
		}
		line.Color, dots.Color = palette[i], palette[i]
		line.Width = vg.Points(1.5)
		dots.Shape = draw.CircleGlyph{}
		p.Add(line, dots)
		p.Legend.Add(name, line, dots)
		drawn++
	}
	if drawn == 0 {
		return nil
	}
	p.Legend.TextStyle.Font.Size, p.Legend.Padding = vg.Points(10), vg.Points(2)
	p.Y.Max = max(p.Y.Max, 2) * 1.6 // the legend is above the curves
	twice := plotter.NewFunction(func(float64) float64 { return 2 })
	twice.Color, twice.Dashes = theirs, []vg.Length{vg.Points(4), vg.Points(3)}
	p.Add(twice)
	return save(p, vg.Points(360), path)
}
