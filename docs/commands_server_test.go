package docs

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// blockTimeout is how long a block of a document may take; users would not wait longer.
const blockTimeout = time.Minute

// Every block of SQL or shell in the documents is run, in order: the SQL in one session of psql, the rest in one shell, as
// a reader would. An indented block that follows is what it must print, whatever else it prints. What the reader would
// have, or would wait for, stands in comments, and what begins with #! is a file that is shown:
//
//	<!-- test: sql
//	insert into ...;
//	-->
func TestEveryCommandInTheDocumentsRuns(t *testing.T) {
	ctx, admin := connect(t)
	files, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	readme := filepath.Join("..", "README.md")
	if _, err := os.Stat(readme); err != nil {
		t.Fatal(err)
	}
	for i, file := range append(files, readme) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		blocks := parseBlocks(string(text))
		if len(blocks) == 0 {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".md"), func(t *testing.T) {
			database := fmt.Sprintf("docs_%d", i)
			createDatabase(ctx, t, admin, database, file != readme)
			r := &reader{T: t, database: database, dir: t.TempDir()}
			for _, b := range blocks {
				r.run(file, b)
			}
			r.leave()
		})
	}
}

// block is something to run, and what it must print.
type block struct {
	language string // sql or sh
	line     int
	text     string
	prints   []string
}

var hiddenBlock = regexp.MustCompile(`^<!-- test: (sql|sh)$`)

// parseBlocks returns what is to be run of a document.
func parseBlocks(text string) []block {
	var (
		blocks []block
		end    string // of the block that is being read
		expect bool   // output of the last block may follow
	)
	for i, line := range strings.Split(text, "\n") {
		last := len(blocks) - 1
		switch {
		case end == "other":
			if line == "```" {
				end = ""
			}
		case end != "":
			if line == end {
				expect, end = end == "```", ""
				continue
			}
			if strings.HasPrefix(line, "#!") && blocks[last].text == "" {
				blocks, end = blocks[:last], "other"
				continue
			}
			blocks[last].text += line + "\n"
		case line == "```sql" || line == "```sh":
			blocks, end, expect = append(blocks, block{language: line[3:], line: i + 1}), "```", false
		case hiddenBlock.MatchString(line):
			blocks, end, expect = append(blocks, block{language: hiddenBlock.FindStringSubmatch(line)[1], line: i + 1}), "-->", false
		case strings.HasPrefix(line, "```"):
			end, expect = "other", false
		case expect && strings.HasPrefix(line, "    "):
			blocks[last].prints = append(blocks[last].prints, line)
		case line != "":
			expect = false
		}
	}
	return blocks
}

func createDatabase(ctx context.Context, t *testing.T, admin *pgx.Conn, name string, extension bool) {
	t.Helper()
	execute := func(conn *pgx.Conn, sql string) {
		t.Helper()
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	execute(admin, "drop database if exists "+name)
	execute(admin, "create database "+name)
	config := admin.Config().Copy()
	config.Database = name
	inside := func() *pgx.Conn {
		conn, err := pgx.ConnectConfig(context.WithoutCancel(ctx), config)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	if extension {
		conn := inside()
		execute(conn, "create extension wed_sql")
		_ = conn.Close(ctx)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		conn := inside()
		_, err := conn.Exec(ctx, "drop extension if exists wed_sql cascade")
		_ = conn.Close(ctx)
		for busy := true; busy && err == nil; {
			err = admin.QueryRow(ctx, "select exists (select from pg_replication_slots where active and database = $1)", name).Scan(&busy)
		}
		if err == nil {
			_, err = admin.Exec(ctx, "drop database "+name+" with (force)")
		}
		if err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
}

// reader is somebody who types what a document says, into psql and into a shell.
type reader struct {
	*testing.T
	database   string
	dir        string
	psql, bash *session
	blocks     int
}

func (r *reader) run(file string, b block) {
	r.Helper()
	r.blocks++
	mark := fmt.Sprintf("--- end of block %d ---", r.blocks)
	var s *session
	var input string
	if b.language == "sql" {
		if r.psql == nil {
			r.psql = r.start("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-P", "pager=off")
		}
		s, input = r.psql, b.text+"\n\\echo '"+mark+"'\n"
	} else {
		if r.bash == nil {
			r.bash = r.start("bash", "--norc", "--noprofile")
		}
		script := filepath.Join(r.dir, fmt.Sprintf(".block%d", r.blocks))
		if err := os.WriteFile(script, []byte(b.text), 0o600); err != nil {
			r.Fatal(err)
		}
		s, input = r.bash, "set -e; . "+script+" </dev/null; set +e; echo '"+mark+"'\n"
	}
	output, ok := s.say(input, mark)
	if !ok {
		r.Fatalf("%s:%d: this %s failed, or did not end:\n%s\nit printed:\n%s", file, b.line, b.language, b.text, output)
	}
	if missing := missingLine(b.prints, output); missing != "" {
		r.Fatalf("%s:%d: does not print %q after what stands before it; it printed:\n%s", file, b.line, missing, output)
	}
}

// ruler is the line below the head of a table.
var ruler = regexp.MustCompile(`^[-+ ]+$`)

// missingLine returns the first of the lines that output does not have behind the ones before it. Blanks and rulers do
// not count.
func missingLine(lines []string, output string) string {
	rest := strings.Split(output, "\n")
	for _, want := range lines {
		want = strings.Join(strings.Fields(want), " ")
		found := ruler.MatchString(want)
		for len(rest) > 0 && !found {
			found = strings.Join(strings.Fields(rest[0]), " ") == want
			rest = rest[1:]
		}
		if !found {
			return want
		}
	}
	return ""
}

// leave ends what the reader has started.
func (r *reader) leave() {
	for _, s := range []*session{r.psql, r.bash} {
		if s != nil {
			s.end()
		}
	}
}

// session is a program that reads commands.
type session struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	lines chan string // what it prints; closed at its end
}

func (r *reader) start(name string, args ...string) *session {
	r.Helper()
	config := connectionOf(r.T)
	cmd := exec.Command(name, args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "PGHOST="+config.Host, fmt.Sprintf("PGPORT=%d", config.Port), "PGUSER="+config.User,
		"PGDATABASE="+r.database, "HOME="+r.dir, "TERM=dumb", "LC_ALL=C.UTF-8", "COLUMNS=200")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, err := cmd.StdinPipe()
	if err != nil {
		r.Fatal(err)
	}
	out, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	s := &session{cmd: cmd, input: input, lines: make(chan string, 1000)}
	r.Cleanup(s.end)
	var readers errgroup.Group // they end with the program, for which end waits
	readers.Go(func() error {
		defer w.Close()
		return cmd.Wait()
	})
	readers.Go(func() error {
		defer close(s.lines)
		scanner := bufio.NewScanner(out)
		scanner.Buffer(nil, 16<<20)
		for scanner.Scan() {
			s.lines <- scanner.Text()
		}
		return scanner.Err()
	})
	return s
}

// say enters commands, and returns what is printed until the mark, and whether it came.
func (s *session) say(commands, mark string) (output string, ok bool) {
	if _, err := io.WriteString(s.input, commands); err != nil {
		return err.Error(), false
	}
	late := time.After(blockTimeout)
	for {
		select {
		case line, more := <-s.lines:
			if !more || line == mark {
				return output, more
			}
			output += line + "\n"
		case <-late:
			return output, false
		}
	}
}

// end ends the program and what it has started: as a reader would, and then by force.
func (s *session) end() {
	_ = s.input.Close()
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGTERM)
	late := time.AfterFunc(20*time.Second, func() { _ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) })
	defer late.Stop()
	for range s.lines {
	}
}

func connectionOf(t *testing.T) *pgx.ConnConfig {
	t.Helper()
	config, err := pgx.ParseConfig(os.Getenv("WED_SQL_TEST_CONN"))
	if err != nil {
		t.Fatal(err)
	}
	return config
}
