package stress

import (
	"testing"
	"time"
)

// A judge that passes everything would prove nothing.
func TestJudgeFindsWhatIsWrong(t *testing.T) {
	str := func(s string) *string { return &s }
	at := func(n int) time.Time { return time.Date(2026, 1, 1, 0, 0, n, 0, time.UTC) }
	good := func() []line {
		return []line{
			{0, state{str("ready"), nil, nil}, nil, []string{"tr_a2", "tr_a3"}, "R", at(0)},
			{1, state{str("ready"), str("x"), nil}, str("tr_a2"), nil, "R", at(1)},
			{2, state{str("ready"), str("x"), str("x")}, str("tr_a3"), []string{"tr_final"}, "R", at(2)},
			{3, state{str("closed"), str("x"), str("x")}, str("tr_final"), nil, "F", at(3)},
		}
	}
	if err := judge(good()); err != nil {
		t.Fatalf("a right history: %v", err)
	}
	for name, spoil := range map[string]func(h []line) []line{
		"a rule fired twice":           func(h []line) []line { h[1].Trf = []string{"tr_a3"}; return h },
		"a rule not fired":             func(h []line) []line { h[2].Trf = nil; return h },
		"a line missing":               func(h []line) []line { return append(h[:1], h[2:]...) },
		"a line twice":                 func(h []line) []line { return append(h[:2], h[1:]...) },
		"written by what did not pend": func(h []line) []line { h[1].Trw = str("tr_final"); return h },
		"written by nobody":            func(h []line) []line { h[1].Trw = nil; return h },
		"a wrong status":               func(h []line) []line { h[3].Status = "R"; return h },
		"final while others pend":      func(h []line) []line { h[1].State.A1 = str("closed"); return h[:2] },
		"time going back":              func(h []line) []line { h[2].Tstmp = at(1); return h },
	} {
		t.Run(name, func(t *testing.T) {
			if judge(spoil(good())) == nil {
				t.Error("the judge did not notice")
			}
		})
	}
}
