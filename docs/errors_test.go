package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// sqlStates returns the SQLSTATEs of wed_sql's own that match in files.
func sqlStates(t *testing.T, pattern string, globs ...string) []string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	var found []string
	for _, glob := range globs {
		files, err := filepath.Glob(glob)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files (%v)", glob, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range re.FindAllStringSubmatch(string(text), -1) {
				code := ""
				for _, part := range m[1:] {
					code += part
				}
				found = append(found, code)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func TestEveryErrorIsDocumented(t *testing.T) {
	if os.Getenv("WED_SQL_TEST_CONN") != "" {
		return // a server's user has no sources; the unit tests have
	}
	raised := sqlStates(t, `'(W)', ?'(E)', ?'(D)', ?'(.)', ?'(.)'`, "../ext/*.h")
	raised = append(raised, sqlStates(t, `errcode = '(WED..)'`, "../sql/*.sql")...)
	slices.Sort(raised)
	raised = slices.Compact(raised)
	documented := sqlStates(t, "(?m)^\\| `(WED..)`", "errors.md")
	if !slices.Equal(raised, documented) {
		t.Errorf("the code raises\n%v\nand errors.md explains\n%v", raised, documented)
	}
}
