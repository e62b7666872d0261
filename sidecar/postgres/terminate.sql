-- Ends sessions that were judged not to count, so that the smart shutdown does not wait for them. The judgement is passed in
-- and held again in this statement: a session is ended only if it is the same one (pid and start), and if it was judged by
-- being idle ($3), only if it still is and has been since the same moment or an earlier one ($4, microseconds since 1970). Returns one row
-- a session that was ended.
-- The judged are gathered first, and apart (MATERIALIZED): in one WHERE with the join the planner is free to call
-- pg_terminate_backend() for every session there is, before it joins.
WITH terminable AS MATERIALIZED (
	SELECT a.pid
	FROM unnest($1::bigint[], $2::bigint[], $3::boolean[], $4::bigint[]) AS judged (pid, started, idle, changed)
	JOIN pg_catalog.pg_stat_activity AS a
	  ON a.pid = judged.pid AND (extract(epoch FROM a.backend_start) * 1000000)::bigint = judged.started
	WHERE NOT judged.idle
	   OR a.state = 'idle' AND (extract(epoch FROM a.state_change) * 1000000)::bigint <= judged.changed
)
SELECT terminable.pid::bigint
FROM terminable
WHERE pg_catalog.pg_terminate_backend(terminable.pid)
