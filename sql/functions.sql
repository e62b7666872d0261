-- Functions for the users of a database whose cluster scales to zero. They write to the channel scale_to_zero, which the
-- sidecar of the primary listens to in one database: the application's, or the one that the Cluster's annotation
-- xata.io/scale-to-zero-database names. In other databases no sidecar listens.
--
--   psql -v ON_ERROR_STOP=1 -f functions.sql DATABASE
--
-- scale_to_zero.touch()               the database is in use now
-- scale_to_zero.keep_awake(interval)  no sleep for that long, at most 7 days
-- scale_to_zero.release()             takes keep_awake back, and no time that a person has set
-- scale_to_zero.hibernate()           sleep as soon as nothing is active, without waiting for the threshold
-- scale_to_zero.status()              what can be seen from inside
--
-- As every NOTIFY, a call takes effect when its transaction commits, and not if it is rolled back; equal calls in one
-- transaction are one. PostgreSQL does not keep it for a sidecar that does not listen, so while none listens in this database, as for
-- a moment after a wake, keep_awake, release and hibernate fail with SQLSTATE 55000, for the caller to try again. touch only
-- warns, because the caller's own session is activity.
--
-- The owner of the database can install this, and should install a newer version as the same role: it replaces the functions,
-- and leaves rights as they are. Every role may call them (EXECUTE belongs to PUBLIC by PostgreSQL's own default). That gives
-- away nothing: every role may NOTIFY on every channel, with or without these functions. So revoking EXECUTE tidies
-- up and protects nothing, and the channel is made to suit: it can delay sleep or suggest it, and never overrules activity.
--
-- No command of psql is in here, so that it also serves as a postInitApplicationSQLRefs of CloudNativePG.

BEGIN;

DO $do$
BEGIN
    -- Only with a new schema: on an old one, what its owner granted and revoked stays.
    IF pg_catalog.to_regnamespace('scale_to_zero') IS NULL THEN
        CREATE SCHEMA scale_to_zero;
        GRANT USAGE ON SCHEMA scale_to_zero TO PUBLIC;
        COMMENT ON SCHEMA scale_to_zero IS 'functions for the channel of cnpg-i-scale-to-zero';
    END IF;
END
$do$;

-- send is what the others are made of.
CREATE OR REPLACE FUNCTION scale_to_zero.send(payload text) RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'scale_to_zero: NOTIFY is impossible on a standby; ask the primary (the Service whose name ends in -rw)'
            USING ERRCODE = 'read_only_sql_transaction';
    END IF;
    PERFORM pg_stat_clear_snapshot(); -- an earlier call of the same transaction may have read pg_stat_activity
    IF NOT EXISTS (SELECT FROM pg_stat_activity
                   WHERE datname = current_database() AND application_name = 'cnpg-i-scale-to-zero listening'
                     AND usename IN ('postgres', 'cnpg_metrics_exporter')) THEN
        IF payload = 'activity' THEN
            RAISE WARNING 'scale_to_zero: the sidecar does not listen in database "%"; only this session counts as activity', current_database();
        ELSE
            RAISE EXCEPTION 'scale_to_zero: the sidecar does not listen in database "%", so the request would be lost', current_database()
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      HINT = 'It listens in the database of xata.io/scale-to-zero-database while the feature is on; try again in a few seconds.';
        END IF;
    END IF;
    PERFORM pg_notify('scale_to_zero', payload);
END
$function$;

CREATE OR REPLACE FUNCTION scale_to_zero.touch() RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $function$ BEGIN PERFORM scale_to_zero.send('activity'); END $function$;

CREATE OR REPLACE FUNCTION scale_to_zero.keep_awake(duration interval) RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    seconds numeric := extract(epoch FROM duration); -- a month has 30 days
BEGIN
    IF duration IS NULL OR seconds <= 0 OR seconds > 7 * 86400 THEN
        RAISE EXCEPTION 'scale_to_zero.keep_awake: % is not allowed; the duration must be more than 0 and at most 7 days',
            coalesce(quote_literal(duration::text), 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Up to whole seconds: never for less than was asked.
    PERFORM scale_to_zero.send('keep-awake ' || ceil(seconds)::bigint || 's');
END
$function$;

CREATE OR REPLACE FUNCTION scale_to_zero.release() RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $function$ BEGIN PERFORM scale_to_zero.send('release'); END $function$;

CREATE OR REPLACE FUNCTION scale_to_zero.hibernate() RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $function$ BEGIN PERFORM scale_to_zero.send('hibernate'); END $function$;

-- status returns what the caller can see from inside this database, without asking the sidecar:
--
--   in_recovery         this is a standby: ask the primary
--   sidecar_connected   the sidecar listens in this database. False for some seconds is normal: the sidecar keeps no session while
--                       PostgreSQL restarts in place, and after a change of the Cluster's specification
--   queue_usage         how full the queue of all NOTIFYs is; at 1 every NOTIFY fails
--   sessions            sessions of others on the whole instance, without the sidecar's. What CloudNativePG itself opens is in it
--   sees_all            whether the caller has the rights of pg_read_all_stats. Without them PostgreSQL hides what
--                       kind of session another user's is: sessions then also counts background workers that have a user and
--                       a database, and misses nothing else but walsenders
--
-- Whether and why the cluster is awake, only the sidecar knows: its metrics and the Cluster's Events say it.
CREATE OR REPLACE FUNCTION scale_to_zero.status(
    OUT in_recovery boolean, OUT sidecar_connected boolean, OUT queue_usage double precision, OUT sessions bigint, OUT sees_all boolean
) RETURNS SETOF record
    LANGUAGE sql STABLE PARALLEL RESTRICTED
    SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT pg_is_in_recovery(),
           coalesce(bool_or(sidecar AND datname = current_database() AND application_name = 'cnpg-i-scale-to-zero listening'), false),
           pg_notification_queue_usage(),
           count(*) FILTER (WHERE NOT sidecar AND backend_type IN ('client backend', 'walsender')
                               OR NOT sidecar AND backend_type IS NULL AND datname IS NOT NULL),
           pg_has_role('pg_read_all_stats', 'USAGE')
    FROM (SELECT datname, backend_type, application_name,
                 -- By user and name together: any user may choose an application_name.
                 coalesce(application_name IN ('cnpg-i-scale-to-zero', 'cnpg-i-scale-to-zero listening') AND usename IN ('postgres', 'cnpg_metrics_exporter'), false) AS sidecar
          FROM pg_stat_activity
          WHERE pid <> pg_backend_pid() AND usename IS NOT NULL) AS others
$function$;

COMMIT;
