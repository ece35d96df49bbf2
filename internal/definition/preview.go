package definition

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Loss is what is lost with an attribute that is dropped.
type Loss struct {
	Attribute string `json:"attribute"`
	Values    int64  `json:"values"` // instances in which it is not null
}

// Left is the jobs that wait of a rule that is removed.
type Left struct {
	Rule string `json:"rule"`
	Jobs int64  `json:"jobs"`
}

// Preview is what a plan would mean for the instances that there are.
type Preview struct {
	Losses  []Loss `json:"losses"`
	Left    []Left `json:"jobs_left"`
	Running int64  `json:"running"` // instances that have not ended
	Looked  int64  `json:"looked"`  // those of them that were looked at, the newest
	// what would become of these, if they were matched anew
	Anew Anew `json:"rematch"`
}

// Anew is what becomes of instances that are matched anew.
type Anew struct {
	Changed int64            `json:"changed"`
	Fires   map[string]int64 `json:"fires"` // by transition
	Stuck   []int64          `json:"stuck"` // instances that become exceptions
	Ends    int64            `json:"ends"`
	Leads   int64            `json:"leads_on"` // exceptions that would be none any more
	Failed  []string         `json:"failed"`   // instances of which it is not known, and why
}

func newAnew() Anew {
	return Anew{Fires: make(map[string]int64), Stuck: []int64{}, Failed: []string{}}
}

// Losses counts what is lost with a plan, before it is written.
func (p *Plan) Losses(ctx context.Context, q Queryer, flow string) (*Preview, error) {
	schema := pgx.Identifier{flow}.Sanitize()
	preview := &Preview{Losses: []Loss{}, Left: []Left{}, Anew: newAnew()}
	for _, c := range p.Attributes {
		if c.New >= 0 {
			continue
		}
		l := Loss{Attribute: p.Old.Attributes[c.Old].Name}
		err := q.QueryRow(ctx, fmt.Sprintf(`select count(*) from %s.wed_flow where %s is not null`, schema, pgx.Identifier{l.Attribute}.Sanitize())).Scan(&l.Values)
		if err != nil {
			return nil, fmt.Errorf("count the values of attribute %q: %w", l.Attribute, err)
		}
		if l.Values > 0 {
			preview.Losses = append(preview.Losses, l)
		}
	}
	for _, c := range p.Rules {
		if c.New >= 0 {
			continue
		}
		r := p.Old.Rules[c.Old]
		l := Left{Rule: r.Label()}
		if err := q.QueryRow(ctx, fmt.Sprintf(`select count(*) from %s.job_pool where tgid = $1`, schema), r.ID).Scan(&l.Jobs); err != nil {
			return nil, fmt.Errorf("count the jobs of %s: %w", l.Rule, err)
		}
		if l.Jobs > 0 {
			preview.Left = append(preview.Left, l)
		}
	}
	return preview, nil
}

// Rehearse fills in what matching the instances anew would do, after the plan was written.
// Of many instances it looks at the newest only, and it waits for none that is in use.
func (v *Preview) Rehearse(ctx context.Context, tx pgx.Tx, flow string, most int64) error {
	schema := pgx.Identifier{flow}.Sanitize()
	err := tx.QueryRow(ctx, fmt.Sprintf(`select count(*), least(count(*), $1) from %s.wed_instance where status in ('R', 'E')`, schema), most).
		Scan(&v.Running, &v.Looked)
	if err != nil {
		return fmt.Errorf("count the instances of flow %q: %w", flow, err)
	}
	if v.Looked == 0 {
		return nil
	}
	sub, err := tx.Begin(ctx)
	if err != nil {
		return fmt.Errorf("rehearse: %w", err)
	}
	defer func() { _ = sub.Rollback(ctx) }()
	if _, err := sub.Exec(ctx, `set local lock_timeout = '100ms'`); err != nil {
		return fmt.Errorf("rehearse: %w", err)
	}
	which := fmt.Sprintf(`wid in (select wid from %s.wed_instance where status in ('R', 'E') order by wid desc limit %d)`, schema, most)
	v.Anew, err = rematch(ctx, sub, flow, which, true)
	return err
}

// Rematch matches all instances of a flow anew.
func Rematch(ctx context.Context, tx pgx.Tx, flow string) (Anew, error) {
	return rematch(ctx, tx, flow, "true", false)
}

func rematch(ctx context.Context, tx pgx.Tx, flow, which string, dryRun bool) (Anew, error) {
	anew := newAnew()
	rows, err := tx.Query(ctx, `
		select m.wid, m.status::text, m.fired, m.withdrawn, m.error
		from wed_sql.rematch($1, $2::text, 'flow apply', dry_run => $3) m order by m.wid`, flow, which, dryRun)
	if err != nil {
		return anew, fmt.Errorf("match the instances of flow %q anew: %w", flow, err)
	}
	defer rows.Close()
	for rows.Next() {
		var wid int64
		var status, problem *string
		var fired, withdrawn []string
		if err := rows.Scan(&wid, &status, &fired, &withdrawn, &problem); err != nil {
			return anew, fmt.Errorf("match the instances of flow %q anew: %w", flow, err)
		}
		anew.add(wid, status, fired, withdrawn, problem)
	}
	if err := rows.Err(); err != nil {
		return anew, fmt.Errorf("match the instances of flow %q anew: %w", flow, err)
	}
	return anew, nil
}

func (a *Anew) add(wid int64, status *string, fired, withdrawn []string, problem *string) {
	if status == nil {
		why := "it is in use"
		if problem != nil {
			why = *problem
		}
		a.Failed = append(a.Failed, fmt.Sprintf("instance %d: %s", wid, why))
		return
	}
	a.Changed++
	switch *status {
	case "E":
		a.Stuck = append(a.Stuck, wid)
	case "F":
		a.Ends++
	}
	for _, t := range fired {
		if t != "_EXCPT" {
			a.Fires[t]++
		}
	}
	for _, t := range withdrawn {
		if t == "_EXCPT" && *status == "R" {
			a.Leads++
		}
	}
}
