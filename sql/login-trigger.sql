-- Opt-in: every login to this database counts as activity, even of a session over the Unix socket that lasts a millisecond,
-- which samples of pg_stat_activity miss. PostgreSQL 17 or later; as a superuser, in the
-- database that the sidecar listens to:
--
--   psql -v ON_ERROR_STOP=1 -f login-trigger.sql DATABASE
--
-- THE WAY BACK IN. A login event trigger that fails keeps everybody out of the database, superusers included. This one
-- takes the pains below not to; if it ever does, or any other login trigger, as a superuser:
--
--   PGOPTIONS='-c event_triggers=off' psql DATABASE
--   kubectl cnpg psql CLUSTER -- "dbname=DATABASE options='-c event_triggers=off'"
--
-- and run uninstall.sql there; or for everybody: ALTER SYSTEM SET event_triggers = off and SELECT pg_reload_conf() in
-- another database (the trigger is per database). CloudNativePG disables ALTER SYSTEM: there, event_triggers: "off" under
-- spec.postgresql.parameters.
--
-- WHAT IT COSTS. A transaction per login, with a transaction id and a commit record of WAL that nobody waits for; logins at
-- the same moment share one. docs/reference/sql.md has the time. A dump holds the trigger, and only a superuser can restore it.
--
-- WHAT IT DOES NOT DO. It is not fired while session_replication_role is replica. It notifies nobody on a standby, while the
-- queue of notifications is more than 10 % full, and while another login's or any other NOTIFY is being committed: such
-- a session still counts while it is seen open.
--
-- WHAT REMAINS (measured on 17.11 and 18.6). statement_timeout does not run during a login trigger. transaction_timeout
-- does: the first statement turns it off, but a role with a few milliseconds of it may be thrown out before that, on a
-- busy machine. A role with default_transaction_isolation = serializable, _read_only and _deferrable all set waits for
-- a safe snapshot before any login trigger runs. Other login triggers share the transaction: what they write is then
-- committed with synchronous_commit = off. A NOTIFY that begins its commit in the instant between our check and our own
-- commit, and is stuck there, holds up that one login.
--
-- Not seen on these, but reported of earlier minor releases (BUG #19488): after the last login trigger of a database was
-- dropped, standbys refuse logins to it until a user has logged in to it on the primary.

DO $install$
BEGIN
    IF pg_catalog.current_setting('server_version_num')::integer < 170000 THEN
        RAISE EXCEPTION 'scale_to_zero: login event triggers need PostgreSQL 17 or later, and this is %',
            pg_catalog.current_setting('server_version')
            USING ERRCODE = 'feature_not_supported';
    END IF;
    IF pg_catalog.to_regnamespace('scale_to_zero') IS NULL THEN
        CREATE SCHEMA scale_to_zero;
        GRANT USAGE ON SCHEMA scale_to_zero TO PUBLIC;
    END IF;
    -- Not CREATE OR REPLACE: that would keep the owner of a function that was put here before, and what the owner makes of it
    -- later would run with the rights of everybody who logs in.
    DROP EVENT TRIGGER IF EXISTS scale_to_zero_login;
    DROP FUNCTION IF EXISTS scale_to_zero.notify_login();
    CREATE FUNCTION scale_to_zero.notify_login() RETURNS event_trigger
        LANGUAGE plpgsql
        SET search_path = pg_catalog, pg_temp
    AS $function$
    -- What fails in here is caught below. What fails at commit is not, and NOTIFY does its work at commit: so
    -- everything that could fail or wait there is checked before.
    BEGIN
        -- Until the end of the transaction, so for its commit too.
        SET LOCAL transaction_timeout = 0;

        IF pg_is_in_recovery() THEN -- impossible there
            RETURN;
        END IF;

        -- The infrastructure, by user and application_name together, as sidecar/activity/session.go knows it; a test compares them.
        -- What this server cannot tell, the addresses of its standbys, is left to the sidecar: it judges their sessions by them.
        DECLARE
            application text := current_setting('application_name');
            socket boolean := inet_client_addr() IS NULL;
            cluster text := current_setting('cluster_name') || '-';
        BEGIN
            IF session_user = 'postgres' AND socket AND application IN ('cnpg-instance-manager', 'cnpg_metrics_exporter', 'pg_isready', 'cnpg-i-scale-to-zero')
                OR session_user = 'cnpg_metrics_exporter' AND socket AND application IN ('cnpg_metrics_exporter', 'cnpg-i-scale-to-zero')
                OR session_user = 'streaming_replica' AND current_database() = 'postgres' AND starts_with(application, cluster)
                    AND substr(application, length(cluster) + 1) ~ '^[0-9]+(-join)?$'
                OR session_user = 'cnpg_pooler_pgbouncer' AND current_database() = 'postgres'
            THEN
                RETURN;
            END IF;
        END;

        -- A full queue fails the commit. The listener that holds it up is not ours: the sidecar's reads at once.
        IF pg_notification_queue_usage() > 0.1 THEN
            RETURN;
        END IF;
        -- A commit with NOTIFY holds one lock of the whole instance until it ends, and it may wait long for
        -- a synchronous standby. So one login at a time, and none while another session holds that lock: an object of
        -- class pg_database and number 0.
        IF NOT pg_try_advisory_xact_lock(hashtextextended('scale_to_zero.notify_login', 0))
            OR EXISTS (SELECT FROM pg_locks WHERE locktype = 'object' AND classid = 'pg_database'::regclass AND objid = 0)
        THEN
            RETURN;
        END IF;
        SET LOCAL synchronous_commit = off;
        SET LOCAL lock_timeout = 0;
        -- NOTIFY would ask for it at commit, and there may be none left.
        PERFORM pg_current_xact_id();
        PERFORM pg_notify('scale_to_zero', 'activity');
    EXCEPTION
        WHEN OTHERS OR query_canceled OR assert_failure THEN -- OTHERS leaves those two out
            RETURN;
    END
    $function$;
    CREATE EVENT TRIGGER scale_to_zero_login ON login EXECUTE FUNCTION scale_to_zero.notify_login();
    COMMENT ON EVENT TRIGGER scale_to_zero_login IS 'cnpg-i-scale-to-zero: a login is activity; event_triggers=off turns it off';
END
$install$;
