package picture

import "strings"

// A picture's colours, by the role that they play. On the lighter grounds,
// writing has a contrast of at least 4.5 to them, and lines of 3.
type palette struct {
	paper, card, ink, muted, line, accent, good, bad, warn, shade, badShade, soft string
}

var (
	light = palette{
		paper: "#ffffff", card: "#f5f7fa", ink: "#1b2129", muted: "#57606d", line: "#7a8594", accent: "#0b5cad",
		good: "#14713a", bad: "#b3261e", warn: "#8a5a00", shade: "#e9edf2", badShade: "#fbe9e7", soft: "#cfe2f7",
	}
	dark = palette{
		paper: "#11151b", card: "#1b222c", ink: "#e8edf3", muted: "#a5b0be", line: "#76828f", accent: "#6db3f8",
		good: "#5cc98a", bad: "#ff8a80", warn: "#e3b341", shade: "#252e3a", badShade: "#3b1f21", soft: "#1f3a57",
	}
)

const shapes = `text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,"Noto Sans",sans-serif;font-size:12px}
.head{font-size:18px;font-weight:600}
.name{font-size:14px;font-weight:600}
.small{font-size:11px}
.code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:11px}
.icon{fill:none;stroke-width:1.3;stroke-linecap:round;stroke-linejoin:round}
.curve{fill:none}
`

const colours = `.paper{fill:PAPER}
text{fill:INK}
text.muted,.muted text{fill:MUTED}
text.accent{fill:ACCENT}
text.good{fill:GOOD}
text.bad{fill:BAD}
text.warn{fill:WARN}
.icon{stroke:MUTED}
.icon.ink{stroke:INK}
.icon.accent{stroke:ACCENT}
.icon.bad{stroke:BAD}
.icon.warn{stroke:WARN}
.icon.good{stroke:GOOD}
`

// baseStyle is what all pictures have in common.
var baseStyle = shapes + Style(colours)

// Style writes rules whose colours are named by their roles (INK, PAPER, ...)
// for light screens and paper, and once more for dark screens.
func Style(rules string) string {
	return light.apply(rules) + "@media screen and (prefers-color-scheme:dark){\n" + dark.apply(rules) + "}\n"
}

func (p palette) apply(rules string) string {
	return strings.NewReplacer(
		"BADSHADE", p.badShade, "PAPER", p.paper, "CARD", p.card, "INK", p.ink, "MUTED", p.muted, "LINE", p.line, "ACCENT", p.accent,
		"GOOD", p.good, "BAD", p.bad, "WARN", p.warn, "SHADE", p.shade, "SOFT", p.soft).Replace(rules)
}
