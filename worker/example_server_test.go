package worker_test

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// An example of the documentation, run against a server.
func TestExampleDoesWhatItSays(t *testing.T) {
	dsn := os.Getenv("WED_SQL_TEST_CONN")
	if dsn == "" {
		t.Skip("needs a server: make check sets WED_SQL_TEST_CONN")
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec("create extension if not exists wed_sql; select wed_sql.create_flow('travel')")
	defer exec("select wed_sql.drop_flow('travel'); drop schema if exists travel cascade")
	exec(`set search_path = travel;
		insert into wed_attr (aname) values ('destination'), ('hotel'), ('hotel_status');
		insert into wed_trig (trname, cpred) values ('book_hotel', 'hotel is null');
		insert into wed_trig (cpred, cfinal) values ('hotel_status = ''booked''', true);
		create table hotels (name text, city text, rooms integer);
		insert into hotels values ('Grand', 'Ulm', 2)`)
	exec("insert into wed_flow (destination) values ('Ulm'), ('Ulm')")
	exec("select wed_sql.sync('30 s')")

	config := conn.Config()
	for name, value := range map[string]string{
		"PGHOST": config.Host, "PGUSER": config.User, "PGDATABASE": config.Database, "PGOPTIONS": "-c search_path=travel",
	} {
		t.Setenv(name, value)
	}
	if got := printed(t, ExampleConfig_once); got != "<nil>" {
		t.Errorf("it prints %s", got)
	}
	var rooms int
	if err := conn.QueryRow(t.Context(), "select rooms from hotels").Scan(&rooms); err != nil || rooms != 0 {
		t.Errorf("%d rooms are free: %v", rooms, err)
	}
}

// printed returns what f prints.
func printed(t *testing.T, f func()) string {
	t.Helper()
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	stdout := os.Stdout
	os.Stdout = file
	defer func() { os.Stdout = stdout }()
	f()
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
