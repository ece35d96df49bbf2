package gateway

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// tokens makes tokens of entries, and the file that has them.
func (s *server) tokens(entries ...entry) (list []string, t *Tokens) {
	s.Helper()
	var lines []string
	for _, e := range entries {
		token, line, err := NewToken(e.Name, e.Allow, e.Role, e.Metrics)
		if err != nil {
			s.Fatal(err)
		}
		list, lines = append(list, token), append(lines, line)
	}
	path := filepath.Join(s.TempDir(), "tokens")
	write(s.T, path, strings.Join(lines, "\n"))
	t, err := OpenTokens(path)
	if err != nil {
		s.Fatal(err)
	}
	return list, t
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestATokenIsForItsTransitionsOnly(t *testing.T) {
	s := newServer(t, `
		insert into wed_attr (aname, atype) values ('l', 'integer'), ('r', 'integer');
		insert into wed_trig (trname, cpred) values ('left', 'l is null'), ('right', 'r is null');
		insert into wed_trig (cpred, cfinal) values ('l = 1 and r = 1', true);`)
	tokens, file := s.tokens(entry{Name: "left", Allow: []string{s.flow + "/left"}}, entry{Name: "all", Allow: []string{s.flow + "/*"}},
		entry{Name: "other", Allow: []string{"other/*"}}, entry{Name: "metrics", Metrics: true})
	g := s.start(Config{Tokens: file})
	left, all, other := s.worker(g.url), s.worker(g.url), s.worker(g.url)
	left.transition, left.token = "left", tokens[0]
	all.transition, all.token = "right", tokens[1]
	other.transition, other.token = "left", tokens[2]
	s.exec("insert into wed_flow default values")

	j := s.mustLease(all, `{"wait":"1m"}`)
	_, status, p, err := other.lease(s.ctx, `{"wait":"1m"}`)
	s.refused("another flow's", status, p, err, http.StatusForbidden, "")
	wrong := *left
	wrong.transition = "right"
	_, status, p, err = wrong.lease(s.ctx, ``)
	s.refused("another transition's", status, p, err, http.StatusForbidden, "")
	for what, more := range map[string]string{"extend": ``, "complete": `,"state":{"r":1}`, "fail": `,"error":"x"`, "release": ``} {
		status, p, err := left.do(s.ctx, j, what, more)
		s.refused(what+" of another transition's job", status, p, err, http.StatusForbidden, "")
		status, p, err = other.do(s.ctx, j, what, more)
		s.refused(what+" of another flow's job", status, p, err, http.StatusForbidden, "")
	}
	for _, token := range []string{"", "nonsense", tokens[0] + "x"} {
		w := *left
		w.token = token
		_, status, p, err := w.lease(s.ctx, ``)
		s.refused("token "+token, status, p, err, http.StatusUnauthorized, "")
	}
	s.mustDo(all, j, "complete", `,"state":{"r":1}`)
	j = s.mustLease(left, `{"wait":"1m"}`)
	s.mustDo(left, j, "extend", ``)
	stale := *j
	stale.Lckid = "another"
	status, p, err = left.do(s.ctx, &stale, "complete", `,"state":{"l":1}`)
	s.refused("another lckid", status, p, err, http.StatusConflict, stateLeased)
	s.mustDo(left, j, "complete", `,"state":{"l":1}`)
	s.untilAllFinal()

	for token, want := range map[string]int{"": 401, tokens[0]: 403, tokens[3]: 200} {
		req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, g.url+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("/metrics: %d, want %d", resp.StatusCode, want)
		}
	}
}

// Whoever may create schemas can make one look like a flow, and put into it what
// runs in the session of whoever reads it.
func TestWhatLooksLikeAFlowIsNotTouched(t *testing.T) {
	s := newServer(t, oneStep)
	tokens, file := s.tokens(entry{Name: "any", Allow: []string{"*/work"}})
	w := s.worker(s.start(Config{Tokens: file}).url)
	w.token, w.flow = tokens[0], "trap_for_the_gateway"
	s.exec("create role trapper")
	s.exec("create schema trap_for_the_gateway authorization trapper")
	s.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), s.dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer hangUp(conn)
		_, err = conn.PgConn().Exec(context.Background(), "drop schema trap_for_the_gateway cascade; drop role trapper").ReadAll()
		if err != nil {
			t.Error(err)
		}
	})
	if _, err := s.conn.PgConn().Exec(s.ctx, `
		set role trapper;
		create table trap_for_the_gateway.caught (who text);
		create function trap_for_the_gateway.spring() returns text language sql volatile
			begin atomic insert into trap_for_the_gateway.caught values (current_user) returning 'work'; end;
		create view trap_for_the_gateway.job_pool as
			select 1::bigint as wid, 1 as tgid, 'x'::text as lckid, trap_for_the_gateway.spring() as trname;
		grant usage on schema trap_for_the_gateway to public;
		grant select on trap_for_the_gateway.job_pool to public;
		reset role`).ReadAll(); err != nil {
		t.Fatal(err)
	}
	for what, more := range map[string]string{"extend": ``, "complete": `,"state":{}`, "fail": `,"error":"x"`, "release": ``} {
		status, p, err := w.do(s.ctx, &Job{WID: 1, TGID: 1, Lckid: "x"}, what, more)
		s.refused(what, status, p, err, http.StatusNotFound, stateUndefinedObject)
	}
	if n := get[int64](s, "select count(*) from trap_for_the_gateway.caught"); n != 0 {
		t.Errorf("what somebody has put there has run %d times, as %s", n, get[string](s, "select min(who) from trap_for_the_gateway.caught"))
	}
}
