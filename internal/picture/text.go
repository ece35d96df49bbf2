package picture

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Escape writes any text as XML's character data. What XML cannot say at all is
// replaced by a sign for it.
func Escape(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '&':
			b.WriteString("&amp;")
		case r == '<':
			b.WriteString("&lt;")
		case r == '>':
			b.WriteString("&gt;")
		case r == '"':
			b.WriteString("&quot;")
		case r == '\n' || r == '\t':
			b.WriteRune(r)
		case r < ' ':
			b.WriteRune(controlPicture + r)
		case r == 0xfffe || r == 0xffff:
			b.WriteRune(utf8.RuneError)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// controlPicture is the sign for the character 0; the others follow.
const controlPicture = '\u2400'

// Label is a text as it can be shown in one line beside others: a control
// character, or one that turns the direction of what follows, as a sign.
func Label(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r < ' ':
			return controlPicture + r
		case r == 0x7f:
			return '\u2421'
		case r >= 0x80 && r < 0xa0, unicode.Is(unicode.Bidi_Control, r), r == '\u2028', r == '\u2029', r == '\ufeff':
			return utf8.RuneError
		}
		return r
	}, s)
}

// OneLine is a text with its runs of white space as single blanks.
func OneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// Font is a font as far as it can be known how wide a text in it becomes: which
// one the reader has, nobody knows. So it is rather too wide than too narrow.
type Font struct {
	Size  float64
	Bold  bool
	Fixed bool
}

// Width returns how wide a line is at most, in all likelihood.
func (f Font) Width(s string) float64 {
	em := 0.0
	for _, r := range Label(s) {
		switch w := runeWidth(r); {
		case w != 0 && w < 1 && f.Fixed:
			em += 0.61
		default:
			em += w
		}
	}
	if f.Bold && !f.Fixed {
		em *= 1.1
	}
	return em * f.Size
}

// Clip shortens a line so that it is no wider than it may be.
func (f Font) Clip(s string, most float64) string {
	if f.Width(s) <= most {
		return s
	}
	runes := []rune(s)
	low, high := 0, len(runes) // Width grows with the number of runes
	for low < high {
		middle := (low + high + 1) / 2
		if f.Width(string(runes[:middle])+"…") <= most {
			low = middle
		} else {
			high = middle - 1
		}
	}
	for low > 0 && (unicode.IsMark(runes[low]) || runes[low-1] == '\u200d' || unicode.IsSpace(runes[low-1])) {
		low--
	}
	return string(runes[:low]) + "…"
}

// Wrap breaks a line between words, into as many lines as there may be.
func (f Font) Wrap(s string, width float64, most int) []string {
	var lines []string
	rest := strings.Fields(s)
	for len(rest) > 0 {
		line := rest[0]
		n := 1
		for n < len(rest) && f.Width(line+" "+rest[n]) <= width {
			line += " " + rest[n]
			n++
		}
		if len(lines) == most-1 && n < len(rest) {
			line = strings.Join(rest, " ")
			n = len(rest)
		}
		lines = append(lines, f.Clip(line, width))
		rest = rest[n:]
	}
	return lines
}

// runeWidth returns the width of a character, in em.
func runeWidth(r rune) float64 {
	switch {
	case unicode.Is(unicode.Mn, r), unicode.Is(unicode.Me, r), unicode.Is(unicode.Cf, r):
		return 0
	case strings.ContainsRune("iljI.,:;'|! ", r):
		return 0.36
	case strings.ContainsRune("ftr()[]{}/\\-\"*", r):
		return 0.42
	case strings.ContainsRune("mwMW@%", r):
		return 0.95
	case r < 0x80 && (unicode.IsUpper(r) || strings.ContainsRune("+=<>~^#&", r)):
		return 0.75
	case r < 0x80:
		return 0.63
	case r >= 0x1100 && r <= 0x115f, r >= 0x2e80 && r <= 0xa4cf, r >= 0xac00 && r <= 0xd7a3, r >= 0xf900 && r <= 0xfaff,
		r >= 0xfe30 && r <= 0xfe4f, r >= 0xff00 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6, r >= 0x20000 && r <= 0x3fffd:
		return 1.02
	case r >= 0x1f000 && r <= 0x1ffff, r >= 0x2600 && r <= 0x27bf:
		return 1.4
	case r == '·':
		return 0.36
	}
	return 0.78
}
