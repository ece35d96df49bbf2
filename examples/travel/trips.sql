-- Six customers ask for a trip. Each row is an instance of the flow, and these
-- are their first states.

insert into travel.wed_flow (customer, destination, nights) values
    ('Ada',     'Lisbon',    4),
    ('Grace',   'Rome',      2),  -- the first hotel in Rome is full
    ('Alan',    'Reykjavik', 7),  -- there is no flight
    ('Barbara', 'Kyoto',    10),
    ('Mallory', 'Paris',     1),  -- nobody knows this customer
    ('Edsger',  'Recife',    5);
