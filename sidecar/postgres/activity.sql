-- What one sample of an instance shows: every process but the one that asks, the sessions that every database has had, when
-- the server started, and what else speaks against a shutdown. One statement, so that a sample is one query and all of it is
-- of one moment.
--
-- All processes and not only those that look busy: what is provably infrastructure is told apart in one place, in Go, and
-- whatever is not known there counts as use. The columns of sessions of other users are NULL without the rights of
-- pg_read_all_stats (pg_monitor has them); NULL counts as use too, and is not taken for the Unix socket, whose sessions have
-- no address and the port -1. Times are microseconds: since 1970, or for idle_for how long ago.
SELECT 'session' AS kind,
       coalesce(a.backend_type, 'client backend') AS name,
       coalesce(a.usename, '') AS username,
       coalesce(a.application_name, '') AS application,
       coalesce(a.datname, '') AS database,
       coalesce(a.state, '') AS state,
       coalesce(pg_catalog.host(a.client_addr), '') AS client,
       coalesce(a.client_port, 0)::bigint AS port,
       a.pid::bigint AS number,
       coalesce((extract(epoch FROM a.backend_start) * 1000000)::bigint, 0) AS moment,
       coalesce((extract(epoch FROM pg_catalog.clock_timestamp() - a.state_change) * 1000000)::bigint, 0) AS idle_for,
       coalesce((extract(epoch FROM a.state_change) * 1000000)::bigint, 0) AS changed,
       a.xact_start IS NOT NULL AS in_transaction,
       -- The text is absent without track_activities and may be cut short, so any autovacuum worker of a database that needs such a
       -- vacuum is taken for one.
       coalesce(a.query LIKE 'autovacuum: % (to prevent wraparound)', false) OR a.backend_type IS NOT DISTINCT FROM 'autovacuum worker' AND EXISTS (
           SELECT FROM pg_catalog.pg_database AS d WHERE d.oid = a.datid
           AND (pg_catalog.age(d.datfrozenxid) > pg_catalog.current_setting('autovacuum_freeze_max_age')::bigint
               OR pg_catalog.mxid_age(d.datminmxid) > pg_catalog.current_setting('autovacuum_multixact_freeze_max_age')::bigint)
       ) AS wraparound
FROM pg_catalog.pg_stat_activity AS a
WHERE a.pid <> pg_catalog.pg_backend_pid()
UNION ALL
SELECT 'database', '', '', '', d.datname, '', '', 0, d.sessions,
       coalesce((extract(epoch FROM d.stats_reset) * 1000000)::bigint, 0), 0, 0, false, false
FROM pg_catalog.pg_stat_database AS d
WHERE d.datname IS NOT NULL
UNION ALL
-- The name is that of the libraries, as far as they may be read: an extension's background workers may run jobs. changed is
-- when the newest checkpoint began: a shutdown and a recovery each end with one.
SELECT 'server',
       CASE WHEN pg_catalog.pg_has_role('pg_read_all_settings', 'USAGE')
           THEN pg_catalog.current_setting('shared_preload_libraries') ELSE '' END,
       '', '', '', '', '', 0, 0,
       (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint, 0,
       (SELECT (extract(epoch FROM c.checkpoint_time) * 1000000)::bigint FROM pg_catalog.pg_control_checkpoint() AS c), false, false
UNION ALL
SELECT 'blocker', b.name, '', '', '', '', '', 0, b.number, 0, 0, 0, false, false
FROM (
    SELECT 'prepared_transaction' AS name, count(*) AS number FROM pg_catalog.pg_prepared_xacts
    UNION ALL
    SELECT 'advisory_lock', count(*) FROM pg_catalog.pg_locks
    WHERE locktype = 'advisory' AND granted AND pid <> pg_catalog.pg_backend_pid()
    UNION ALL
    SELECT 'base_backup', count(*) FROM pg_catalog.pg_stat_progress_basebackup
    UNION ALL
    -- An ordinary autovacuum shows its progress too, and does not count.
    SELECT 'progress', count(*) FROM (
        SELECT pid FROM pg_catalog.pg_stat_progress_vacuum
        UNION ALL SELECT pid FROM pg_catalog.pg_stat_progress_analyze
        UNION ALL SELECT pid FROM pg_catalog.pg_stat_progress_cluster
        UNION ALL SELECT pid FROM pg_catalog.pg_stat_progress_create_index
        UNION ALL SELECT pid FROM pg_catalog.pg_stat_progress_copy
    ) AS p JOIN pg_catalog.pg_stat_activity AS a USING (pid)
    WHERE a.backend_type IS DISTINCT FROM 'autovacuum worker'
    UNION ALL
    -- Also one whose worker does not run because its publisher is away: asleep, it would not come back to it. Everybody may read
    -- this column, from every database.
    SELECT 'subscription', count(*) FROM pg_catalog.pg_subscription WHERE subenabled
    UNION ALL
    SELECT 'logical_slot', count(*) FROM pg_catalog.pg_replication_slots WHERE slot_type = 'logical' AND active
    UNION ALL
    -- Not a blocker: nobody consumes it now, and the WAL it retains waits just as well asleep.
    SELECT 'inactive_logical_slot', count(*) FROM pg_catalog.pg_replication_slots
    WHERE slot_type = 'logical' AND NOT active
) AS b
WHERE b.number > 0
