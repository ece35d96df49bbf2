package gateway

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestATokenOpensWhatItsLineAllows(t *testing.T) {
	t.Parallel()
	token, line, err := NewToken("w", []string{"travel/book hotel", "a%2Fb/%2A", "x/*"}, "r", false)
	if err != nil || strings.Contains(line, token) || strings.Contains(line, strings.TrimPrefix(token, tokenPrefix)) {
		t.Fatalf("%v: %s", err, line)
	}
	path := filepath.Join(t.TempDir(), "tokens")
	write(t, path, "# a comment\n\n"+line+"\n")
	tokens, err := OpenTokens(path)
	if err != nil || tokens.Len() != 1 {
		t.Fatal(err)
	}
	g := tokens.bearer(token)
	if g == nil || g.name != "w" || g.role != "r" || g.metrics {
		t.Fatalf("%+v", g)
	}
	for what, want := range map[[2]string]bool{
		{"travel", "book hotel"}: true, {"travel", "pay"}: false, {"a/b", "*"}: true, {"a/b", "c"}: false, {"x", "any"}: true, {"y", "any"}: false,
	} {
		if got := g.allows(what[0], what[1]); got != want {
			t.Errorf("%v: %t", what, got)
		}
	}
	for _, wrong := range []string{"", token[1:], token + " ", strings.ToUpper(token)} {
		if tokens.bearer(wrong) != nil {
			t.Errorf("%q is taken for the token", wrong)
		}
	}
}

func TestAFileWithAMistakeIsNotRead(t *testing.T) {
	t.Parallel()
	_, line, err := NewToken("w", []string{"f/t"}, "", false)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "tokens")
	write(t, path, line)
	tokens, err := OpenTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	for text, says := range map[string]string{
		line + "\n" + line: `line 2: another token has the name "w"`,
		line + "\n" + strings.Replace(line, `"w"`, `"v"`, 1):  "same token",
		strings.Replace(line, "f/t", "f", 1):                  "FLOW/TRANSITION",
		strings.Replace(line, "f/t", "f/t/u", 1):              "FLOW/TRANSITION",
		strings.Replace(line, "f/t", "f/%zz", 1):              "%zz",
		strings.Replace(line, "allow", "allows", 1):           "allows",
		strings.Replace(line, `"sha256":"`, `"sha256":"0`, 1): "64 hexadecimal digits",
		line + line:                           "more than one",
		`{"name":"x","sha256":"00"}`:          "allows nothing",
		strings.Replace(line, `"w"`, `""`, 1): "needs a name",
		"w token":                             "wedctl gateway token",
	} {
		write(t, path, text)
		if err := tokens.Reload(); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s\n%v, want %q", text, err, says)
		}
	}
	if tokens.Len() != 1 {
		t.Error("what was valid has been lost")
	}
	if _, err := OpenTokens(path + "x"); err == nil {
		t.Error("no file, no error")
	}
}
