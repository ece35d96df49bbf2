package worker

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// slowAnswers is a DSN that leads to the server by a way on which the answer to a
// statement with the word in it arrives only after arrive was called, and on which
// nothing arrives any more after pull was.
func (s *server) slowAnswers(word string) (dsn string, arrive, pull func()) {
	s.Helper()
	config, err := pgx.ParseConfig(s.dsn)
	if err != nil {
		s.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	may := make(chan struct{})
	arrive = sync.OnceFunc(func() { close(may) })
	var group errgroup.Group
	var mu sync.Mutex
	var conns []net.Conn
	group.Go(func() error {
		for {
			from, err := listener.Accept()
			if err != nil {
				return nil
			}
			to, err := net.Dial("unix", fmt.Sprintf("%s/.s.PGSQL.%d", config.Host, config.Port))
			if err != nil {
				return err
			}
			mu.Lock()
			conns = append(conns, from, to)
			mu.Unlock()
			there := &watched{to: to, word: []byte(word), asked: make(chan struct{})}
			group.Go(func() error { _, _ = io.Copy(there, from); return to.Close() })
			group.Go(func() error {
				defer from.Close()
				for buf := make([]byte, 1<<16); ; {
					n, err := to.Read(buf)
					if err != nil {
						return nil
					}
					select {
					case <-there.asked:
						<-may
					default:
					}
					if _, err := from.Write(buf[:n]); err != nil {
						return nil
					}
				}
			})
		}
	})
	pull = func() {
		listener.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.Close()
		}
	}
	s.Cleanup(func() {
		arrive()
		pull()
		if err := group.Wait(); err != nil {
			s.Error(err)
		}
	})
	port := listener.Addr().(*net.TCPAddr).Port
	return fmt.Sprintf("host=127.0.0.1 port=%d user=%s dbname=%s sslmode=disable", port, config.User, config.Database), arrive, pull
}

// watched passes on what is asked, and notes when a statement with the word is:
// what has the word first is only to be prepared.
type watched struct {
	to       io.Writer
	word     []byte
	prepared bool
	asked    chan struct{}
}

func (w *watched) Write(p []byte) (int, error) {
	if w.prepared {
		w.prepared, w.word = false, nil
		close(w.asked)
	}
	if w.word != nil && bytes.Contains(p, w.word) {
		w.prepared = true
	}
	return w.to.Write(p)
}

// stopsWhileTaking has a worker told to stop while it is on its way to a job, and
// checks that the job is free then, and that nothing has failed.
func (s *server) stopsWhileTaking(of setup, word, taken string) {
	s.Helper()
	dsn, arrive, _ := s.slowAnswers(word)
	of.DSN = dsn
	w := s.new(of)
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	var group errgroup.Group
	group.Go(func() error { return w.Run(ctx) })
	s.exec("insert into wed_flow default values")
	s.until(taken)
	stop()
	arrive()
	if err := group.Wait(); err != nil {
		s.Errorf("worker: %v", err)
	}
	s.until("select not exists (select from pg_stat_activity where application_name like 'wed_sql worker ' || $1 || '%')", s.flow)
	s.loseJob()
	if n := get[int64](s, "select count(*) from job_pool where wid = 1 and lckid is null and attempts = 0"); n != 1 {
		s.Errorf("the job is leased, or an attempt has failed: %s", get[string](s, "select string_agg(j::text, ', ') from job_pool j"))
	}
}

// loseJob returns when a failed attempt has been counted for a job of another
// instance, whose session has ended, and so for those that were lost before.
func (s *server) loseJob() {
	s.Helper()
	s.exec("insert into wed_flow default values")
	s.until("select exists (select from job_pool where wid = 2)")
	conn := s.connect()
	var locked bool
	err := pgx.BeginFunc(s.ctx, conn, func(tx pgx.Tx) error {
		err := tx.QueryRow(s.ctx, "select wed_sql.try_lock(wid, tgid) from "+pgx.Identifier{s.flow}.Sanitize()+".job_pool where wid = 2").Scan(&locked)
		hangUp(conn)
		return err
	})
	if !locked {
		s.Fatalf("the job was not locked: %v", err)
	}
	s.until("select exists (select from job_pool where wid = 2 and attempts > 0)")
}

func TestAJobThatIsBeingLeasedWhenTheWorkerIsToStopIsGivenBack(t *testing.T) {
	s := newServer(t, oneStep)
	of := s.leased("work", returns(State{"v": 1}))
	of.Lease = 1 << 40
	s.stopsWhileTaking(of, "wed_sql.lease_job", "select exists (select from job_pool where lckid is not null)")
}

func TestAJobThatIsBeingLockedWhenTheWorkerIsToStopHasNotFailed(t *testing.T) {
	s := newServer(t, oneStep)
	s.stopsWhileTaking(s.worker("work", returns(State{"v": 1})), "wed_sql.claim_jobs",
		"select exists (select from wed_sql.job_lock where flow = current_schema())")
}

func TestAWorkerThatIsToStopDoesNotWaitForAServerThatIsAway(t *testing.T) {
	s := newServer(t, oneStep)
	running, goOn := make(chan struct{}), make(chan struct{})
	of := s.leased("work", func(context.Context, *Job) (State, error) {
		running <- struct{}{}
		<-goOn
		return State{"v": 1}, nil
	})
	dsn, _, pull := s.slowAnswers("nothing that is ever asked")
	of.DSN = dsn
	w := s.new(of)
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	defer w.Abort()
	ended := make(chan error, 1)
	var group errgroup.Group
	group.Go(func() error { ended <- w.Run(ctx); return nil })
	s.exec("insert into wed_flow default values")
	receive(s, running)
	pull()
	stop()
	close(goOn)
	if err := receive(s, ended); err != nil {
		t.Errorf("worker: %v", err)
	}
}
