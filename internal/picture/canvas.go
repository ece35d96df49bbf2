// Package picture draws SVG: one file that needs no other, without scripts or
// fonts of its own, in the colours that the reader's screen prefers, and in
// light ones on paper.
package picture

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/wed-sql/wed_sql/internal/layered"
)

// Canvas collects the elements of a picture. The text of titles and labels may
// be anything; classes and coordinates are the drawing program's own.
type Canvas struct {
	body bytes.Buffer
}

// Num writes a coordinate, to a tenth of a pixel.
func Num(f float64) string {
	f = math.Round(f*10) / 10
	if f == 0 {
		f = 0 // not -0
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

// Group draws something that has a title, which is shown when it is pointed at.
func (c *Canvas) Group(class, title string, draw func()) {
	fmt.Fprintf(&c.body, "<g class=\"%s\">", class)
	if title != "" {
		fmt.Fprintf(&c.body, "<title>%s</title>", Escape(title))
	}
	c.body.WriteString("\n")
	draw()
	c.body.WriteString("</g>\n")
}

// Rect draws a box with round corners.
func (c *Canvas) Rect(class string, r layered.Rect, radius float64) {
	fmt.Fprintf(&c.body, `<rect class="%s" x="%s" y="%s" width="%s" height="%s"`, class, Num(r.X), Num(r.Y), Num(r.Width), Num(r.Height))
	if radius > 0 {
		fmt.Fprintf(&c.body, ` rx="%s"`, Num(radius))
	}
	c.body.WriteString("/>\n")
}

// Circle draws a circle.
func (c *Canvas) Circle(class string, x, y, r float64) {
	fmt.Fprintf(&c.body, `<circle class="%s" cx="%s" cy="%s" r="%s"/>`+"\n", class, Num(x), Num(y), Num(r))
}

// Line draws a straight line.
func (c *Canvas) Line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(&c.body, `<line class="%s" x1="%s" y1="%s" x2="%s" y2="%s"/>`+"\n", class, Num(x1), Num(y1), Num(x2), Num(y2))
}

// Path draws what d says, in SVG's language.
func (c *Canvas) Path(class, d string) {
	fmt.Fprintf(&c.body, `<path class="%s" d="%s"/>`+"\n", class, d)
}

// Curve draws cubic Bézier curves.
func (c *Canvas) Curve(class string, points []layered.Point) {
	var d strings.Builder
	for i, p := range points {
		switch {
		case i == 0:
			d.WriteString("M")
		case i%3 == 1:
			d.WriteString("C")
		default:
			d.WriteString(" ")
		}
		d.WriteString(Num(p.X) + "," + Num(p.Y))
	}
	c.Path(class, d.String())
}

// Arrow draws the head of an arrow, whose tip is p; dx, dy is the direction.
func (c *Canvas) Arrow(class string, p layered.Point, dx, dy float64) {
	const length, half = 9.0, 4.0
	c.Path(class, fmt.Sprintf("M%s,%sL%s,%sL%s,%sZ", Num(p.X), Num(p.Y),
		Num(p.X-length*dx-half*dy), Num(p.Y-length*dy-half*dx),
		Num(p.X-length*dx+half*dy), Num(p.Y-length*dy+half*dx)))
}

// Text writes one line, from x on.
func (c *Canvas) Text(class string, x, y float64, s string) { c.text(class, "", x, y, s) }

// TextMiddle writes one line around x.
func (c *Canvas) TextMiddle(class string, x, y float64, s string) { c.text(class, "middle", x, y, s) }

// TextEnd writes one line up to x.
func (c *Canvas) TextEnd(class string, x, y float64, s string) { c.text(class, "end", x, y, s) }

func (c *Canvas) text(class, anchor string, x, y float64, s string) {
	if anchor != "" {
		anchor = ` text-anchor="` + anchor + `"`
	}
	fmt.Fprintf(&c.body, `<text class="%s" x="%s" y="%s"%s>%s</text>`+"\n", class, Num(x), Num(y), anchor, Escape(Label(s)))
}

// Icon draws a small sign of 12 by 12, whose upper left corner is x, y.
func (c *Canvas) Icon(class string, icon Icon, x, y float64) {
	fmt.Fprintf(&c.body, `<path class="icon %s" transform="translate(%s,%s)" d="%s"/>`+"\n", class, Num(x), Num(y), icon)
}

// IconAround draws a sign around a place, larger or smaller.
func (c *Canvas) IconAround(class string, icon Icon, x, y, scale float64) {
	fmt.Fprintf(&c.body, `<path class="icon %s" transform="translate(%s,%s) scale(%s)" d="%s"/>`+"\n",
		class, Num(x-6*scale), Num(y-6*scale), strconv.FormatFloat(scale, 'f', -1, 64), icon)
}

// Document returns the picture.
func (c *Canvas) Document(title, description string, size layered.Size, style string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]s" height="%[2]s" viewBox="0 0 %[1]s %[2]s" role="img" aria-labelledby="title desc">`+"\n",
		Num(size.Width), Num(size.Height))
	fmt.Fprintf(&b, "<title id=\"title\">%s</title>\n<desc id=\"desc\">%s</desc>\n<style>\n%s%s</style>\n",
		Escape(title), Escape(description), baseStyle, style)
	fmt.Fprintf(&b, `<rect class="paper" width="%s" height="%s"/>`+"\n", Num(size.Width), Num(size.Height))
	b.Write(c.body.Bytes())
	b.WriteString("</svg>\n")
	return b.Bytes()
}
