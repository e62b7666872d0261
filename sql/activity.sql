-- Every process of the instance but the one that asks, for the judgement of package activity.
--
-- All of them and not only those that look busy: what is provably infrastructure is told apart in one place, in Go, and
-- whatever is not known there counts as use. The columns of sessions of other users are NULL without the rights of
-- pg_read_all_stats (pg_monitor has them); NULL counts as use too, and is not taken for the Unix socket, whose sessions have
-- no address and the port -1.
SELECT coalesce(backend_type, 'client backend'),
       coalesce(usename, ''),
       coalesce(application_name, ''),
       coalesce(datname, ''),
       coalesce(state, ''),
       client_addr IS NULL AND coalesce(client_port, 0) = -1
FROM pg_catalog.pg_stat_activity
WHERE pid <> pg_catalog.pg_backend_pid()
