-- A travel agency as a WED-flow.
--
-- There is no drawing of this process anywhere. There are data (attributes) and
-- rules, and a rule says: whenever an instance's data satisfy this condition,
-- this transition is to be done. All else follows:
--
--   * book_flight and book_hotel run in parallel, because the same state
--     satisfies both conditions;
--   * close_trip waits for both, because its condition needs both results;
--   * a state that satisfies no condition, while nothing is under way and the
--     trip has not ended, is an exception: transition _EXCPT is fired, and its
--     worker may write any state that leads on.
--
-- Everything is in one transaction: a mistake in a rule leaves nothing behind.

begin;

select wed_sql.create_flow('travel');
set local search_path = travel;

-- The data of a trip. adv is the value that a new trip begins with.
insert into wed_attr (aname, atype, adv) values
    ('customer',        'text',    null),
    ('destination',     'text',    null),
    ('nights',          'integer', '3'),
    ('customer_status', 'text',    null),        -- valid, unknown
    ('flight_status',   'text',    null),        -- booked, none, cancelled
    ('flight',          'text',    null),        -- what was booked
    ('hotel_status',    'text',    null),        -- booked, full, cancelled
    ('hotel',           'text',    null),
    ('hotel_choice',    'integer', '1'),         -- which hotel of the place to ask
    ('trip',            'text',    'requested'); -- requested, confirmed, cancelled

-- The rules. A condition is what could stand behind WHERE. A transition must
-- make its own condition untrue, or it is fired again.
insert into wed_trig (tgname, trname, cname, cpred, timeout) values
    ('customer', 'check_customer', 'is new',
     $$ trip = 'requested' and customer_status is null $$, '10 s'),

    ('flight', 'book_flight', 'needs a flight',
     $$ customer_status = 'valid' and flight_status is null $$, '30 s'),

    ('hotel', 'book_hotel', 'needs a hotel',
     $$ customer_status = 'valid' and hotel_status is null $$, '30 s'),

    ('closing', 'close_trip', 'has both',
     $$ trip = 'requested' and flight_status = 'booked' and hotel_status = 'booked' $$, '10 s');

-- The end. It has no transition, and a trip that has ended cannot be changed.
insert into wed_trig (tgname, cname, cpred, cfinal) values
    ('end', 'has ended', $$ trip in ('confirmed', 'cancelled') $$, true);

commit;
